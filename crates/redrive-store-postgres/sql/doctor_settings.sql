-- Settings as this role has them in this database, and what each comes from.
SELECT name, setting, source FROM pg_settings WHERE name = ANY($1::text[])
