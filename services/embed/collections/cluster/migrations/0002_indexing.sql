-- The progress of indexes, and who is working on what. Images up to handed_out are in a claim or indexed; none are
-- handed out before there is a place for the vectors.

CREATE TABLE indexes (
    index bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collection bigint NOT NULL REFERENCES collections,
    checkpoint text COLLATE "C" NOT NULL,
    condition text COLLATE "C" NOT NULL,
    handed_out bigint NOT NULL DEFAULT 0,
    is_created boolean NOT NULL DEFAULT false,
    -- the vector database's own time of the last vectors, and what it has measured to search them
    written bigint NOT NULL DEFAULT 0,
    tuning text,
    used timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (collection, checkpoint, condition)
);

CREATE TABLE claims (
    claim bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collection bigint NOT NULL REFERENCES collections,
    checkpoint text COLLATE "C" NOT NULL,
    first_row bigint NOT NULL,
    last_row bigint NOT NULL,
    indexes bigint[] NOT NULL,
    holder text NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    expires timestamptz NOT NULL
);

CREATE INDEX claims_by_checkpoint ON claims (collection, checkpoint, expires);
