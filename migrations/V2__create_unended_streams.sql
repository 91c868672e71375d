-- Tools whose event streams ended without a terminal event, until a person says that they are mended.
-- Creates a table only, so it takes no lock that a running binary could wait for; the binary before
-- it works on.

CREATE TABLE callonce_unended_streams (
    tool     text        PRIMARY KEY,
    streams  bigint      NOT NULL,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
