-- Which changes a collection takes: open, read_only or copy, one that is being filled from elsewhere.

ALTER TABLE collections ADD COLUMN access text NOT NULL DEFAULT 'open';
