-- The ledger: one row a key, the history of what did not go the ordinary way, and suspects.
-- Creates tables only, so it takes no lock that a running binary could wait for.
--
-- Two rules hold for every later migration: no index but the primary key may name a column that a
-- settling changes (it would cost every heap-only update), and nothing that a tool answered is
-- kept as json, jsonb or text, each of which refuses or rewrites some answers after the effect.

CREATE TABLE callonce_calls (
    key              bytea       PRIMARY KEY,
    digest           bytea       NOT NULL,
    key_version      smallint    NOT NULL,

    -- What the key was made of, and the arguments as they came.
    conversation_id  text        NOT NULL,
    turn_index       bigint      NOT NULL,
    name             text        NOT NULL,
    ordinal          bigint      NOT NULL,
    args             bytea,
    meta             bytea,

    -- The model response that asked first, and the one that asked last.
    response_id      text,
    last_response_id text,

    -- The tool as it was registered when the claim was made.
    effect           text        NOT NULL,
    timeout_ms       bigint      NOT NULL,
    sent_as          bytea       NOT NULL,

    state            text        NOT NULL,
    claim            uuid,
    attempt          integer     NOT NULL,
    lapses           integer     NOT NULL DEFAULT 0,
    maybe_since      timestamptz,
    too_many         boolean     NOT NULL DEFAULT false,
    late_completion  boolean     NOT NULL DEFAULT false,
    approved_at      timestamptz,
    worker           text,
    lease_until      timestamptz,

    outcome          bytea,
    claimed_at       timestamptz NOT NULL,
    last_claimed_at  timestamptz NOT NULL,
    settled_at       timestamptz,
    pruned_at        timestamptz,

    CHECK (octet_length(key) = 16 AND octet_length(digest) = 32),
    CHECK (turn_index >= 0 AND ordinal >= 0 AND attempt >= 0 AND lapses >= 0),
    CHECK (effect IN ('keyed_write', 'unkeyed_write')),
    CHECK (state IN ('in_flight', 'completed', 'not_run', 'unknown', 'held')),
    CHECK (state <> 'in_flight' OR (claim IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (state IN ('in_flight', 'held') OR settled_at IS NOT NULL),
    -- An ambiguous request outlives every later one.
    CHECK (state <> 'not_run' OR maybe_since IS NULL)
)
-- Room on each page for the settling's new version of a row, beside the claim's.
WITH (fillfactor = 60);

CREATE TABLE callonce_history (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key       bytea       NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    event     text        NOT NULL,
    claim     uuid,
    attempt   integer,
    worker    text,
    decided_by text,
    reason    text,
    detail    bytea
);

CREATE INDEX callonce_history_key ON callonce_history (key, id);

-- Deliveries that came back several times without a row, written down before they are decoded.
CREATE TABLE callonce_suspects (
    body_digest bytea       PRIMARY KEY,
    starts      integer     NOT NULL,
    first_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
