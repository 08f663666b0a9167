-- Vectors are in a table vectors_<index> for each index, which is made with it. Earlier ones were elsewhere, and are
-- computed again.

TRUNCATE claims, indexes;
ALTER TABLE indexes DROP COLUMN is_created, DROP COLUMN written;
DROP TABLE deleted_rows;
