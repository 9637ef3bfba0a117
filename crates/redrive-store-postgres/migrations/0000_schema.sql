-- The schema of redrive's tables, and the table of applied migrations. Runs before every migration.
CREATE SCHEMA IF NOT EXISTS redrive;

CREATE TABLE IF NOT EXISTS redrive.schema (
  version          integer PRIMARY KEY,
  compatible_since integer NOT NULL,
  applied_at       timestamptz NOT NULL DEFAULT now()
);
