-- Collections, their images and conditions. Texts that are compared or sorted are so by code points.

-- names this database where others are kept beside it
CREATE TABLE identity (id text NOT NULL);
INSERT INTO identity VALUES (replace(gen_random_uuid()::text, '-', ''));

CREATE TABLE collections (
    collection bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    model text NOT NULL,
    created double precision NOT NULL,
    last_row bigint NOT NULL DEFAULT 0,
    num_images bigint NOT NULL DEFAULT 0,
    num_bytes bigint NOT NULL DEFAULT 0,
    is_deleted boolean NOT NULL DEFAULT false
);

CREATE UNIQUE INDEX collections_by_name ON collections (tenant, name) WHERE NOT is_deleted;

CREATE TABLE contents (
    collection bigint NOT NULL REFERENCES collections,
    digest text COLLATE "C" NOT NULL,
    num_bytes bigint NOT NULL,
    object_key text COLLATE "C" NOT NULL,
    PRIMARY KEY (collection, digest)
);

-- metadata is returned and compared as it was sent; searchable is {"<collection>": metadata}, for filters
CREATE TABLE images (
    collection bigint NOT NULL,
    row bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    created double precision NOT NULL,
    metadata text NOT NULL,
    searchable jsonb NOT NULL,
    PRIMARY KEY (collection, row),
    UNIQUE (collection, id),
    FOREIGN KEY (collection, digest) REFERENCES contents
);

CREATE INDEX images_by_digest ON images (collection, digest);
CREATE INDEX images_by_metadata ON images USING gin (searchable jsonb_path_ops);

-- a condition is any text; PostgreSQL's texts lack U+0000
CREATE TABLE conditions (
    collection bigint NOT NULL REFERENCES collections,
    text bytea NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    is_pinned boolean NOT NULL,
    used double precision NOT NULL,
    PRIMARY KEY (collection, text)
);

-- objects that no image has yet, or has any more; a condemned one is never used again
CREATE TABLE loose_objects (
    object_key text COLLATE "C" PRIMARY KEY,
    collection bigint NOT NULL REFERENCES collections,
    num_bytes bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_condemned boolean NOT NULL
);

CREATE INDEX loose_objects_by_collection ON loose_objects (collection, since);

-- rows of deleted images whose vectors may still exist
CREATE TABLE deleted_rows (
    collection bigint NOT NULL REFERENCES collections,
    row bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (collection, row)
);
