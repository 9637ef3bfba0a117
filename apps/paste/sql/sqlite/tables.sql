-- Creates the tables if they are missing. The unique index allows one live blob for each content.
CREATE TABLE IF NOT EXISTS blobs (
    id BLOB PRIMARY KEY,
    sha256 BLOB NOT NULL,
    size INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('uploading', 'stored', 'failed', 'removing')),
    s3_url TEXT
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS blobs_live ON blobs (sha256) WHERE state IN ('uploading', 'stored');

CREATE TABLE IF NOT EXISTS pastes (
    code TEXT PRIMARY KEY,
    blob BLOB NOT NULL REFERENCES blobs (id),
    status TEXT NOT NULL CHECK (status IN ('IN_PROGRESS', 'PROCESSED', 'FAILED')),
    s3_url TEXT,
    owner_hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS pastes_by_blob ON pastes (blob);
CREATE INDEX IF NOT EXISTS pastes_by_expiry ON pastes (expires_at);
CREATE INDEX IF NOT EXISTS pastes_failed ON pastes (created_at) WHERE status = 'FAILED';

CREATE TABLE IF NOT EXISTS contents (
    blob BLOB NOT NULL,
    part INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (blob, part)
) STRICT;
