-- The name of an object that only the object store of this database's images has.

ALTER TABLE identity ADD COLUMN store_mark text;
