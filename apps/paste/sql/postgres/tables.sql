-- Creates the tables if they are missing. The unique index allows one live blob for each content. The lock makes nodes that start
-- at the same time create the tables one after the other.
SELECT pg_advisory_xact_lock(7400);
CREATE SCHEMA IF NOT EXISTS paste;
CREATE TABLE IF NOT EXISTS paste.blobs (
    id UUID PRIMARY KEY,
    sha256 BYTEA NOT NULL,
    size BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('uploading', 'stored', 'failed', 'removing')),
    s3_url TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS blobs_live ON paste.blobs (sha256) WHERE state IN ('uploading', 'stored');

CREATE TABLE IF NOT EXISTS paste.pastes (
    code TEXT COLLATE "C" PRIMARY KEY,
    blob UUID NOT NULL REFERENCES paste.blobs (id) DEFERRABLE INITIALLY DEFERRED,
    status TEXT NOT NULL CHECK (status IN ('IN_PROGRESS', 'PROCESSED', 'FAILED')),
    s3_url TEXT,
    owner_hash BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX IF NOT EXISTS pastes_by_blob ON paste.pastes (blob);
CREATE INDEX IF NOT EXISTS pastes_by_expiry ON paste.pastes (expires_at);
CREATE INDEX IF NOT EXISTS pastes_failed ON paste.pastes (created_at) WHERE status = 'FAILED';

CREATE TABLE IF NOT EXISTS paste.contents (
    blob UUID NOT NULL,
    part INTEGER NOT NULL,
    bytes BYTEA NOT NULL,
    PRIMARY KEY (blob, part)
);
