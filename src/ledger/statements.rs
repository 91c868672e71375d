//! All SQL text. Each constant names its parameters in order and what zero rows mean; each write
//! after the insert is guarded as [`super::state`] says, guard for guard.
//!
//! Times are the database's. Durations are parameters in milliseconds, a job's `expires_at` in
//! microseconds of the Unix epoch (`bigint`): the server reads no text as a time, and refuses none.
//!
//! Rows of many keys are found by `key = ANY (ARRAY[asked.key])`, not by `key = asked.key`. By an
//! equality a plan that was made while the table had a few rows reads the whole index once for each key,
//! and is kept while the table grows; by this every plan looks each key up, and in the order in which
//! they were asked: an update of many rows locks them in that order.

/// Inserts rows as claimed, in key order so that no two batches can deadlock.
///
/// Parameters: arrays of one length (keys, digests, conversations, turns, names, ordinals, args,
/// metas, responses, effects, time-outs, `sent_as`, claims, leases, expires at, workers), then key
/// version. Rows: the claims that were granted. One that is not there: there is a row already, or the
/// call has expired; read it.
pub(super) const CLAIM: &str = "
INSERT INTO callonce_calls
    (key, digest, key_version, conversation_id, turn_index, name, ordinal, args, meta,
     response_id, last_response_id, effect, timeout_ms, sent_as,
     state, claim, attempt, worker, lease_until, claimed_at, last_claimed_at)
SELECT a.key, a.digest, $17, a.conversation, a.turn, a.name, a.ordinal, a.args, a.meta,
       a.response, a.response, a.effect, a.timeout_ms, a.sent_as,
       'in_flight', a.claim, 1, a.worker, now() + a.lease_ms * interval '1 millisecond', now(), now()
FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::text[], $6::bigint[],
            $7::bytea[], $8::bytea[], $9::text[], $10::text[], $11::bigint[], $12::bytea[],
            $13::uuid[], $14::bigint[], $15::bigint[], $16::text[])
     AS a (key, digest, conversation, turn, name, ordinal,
           args, meta, response, effect, timeout_ms, sent_as,
           claim, lease_ms, expires_at_us, worker)
WHERE a.expires_at_us IS NULL OR a.expires_at_us > (EXTRACT(epoch FROM now()) * 1000000)::bigint
ORDER BY a.key
ON CONFLICT (key) DO NOTHING
RETURNING claim";

/// Inserts a row as held: nothing is sent until a person has said that it may be.
///
/// Parameters: key, digest, key version, conversation, turn, name, ordinal, args, meta, response,
/// effect, time-out, `sent_as`, expires at (or null).
/// Zero rows: there is a row already, or the call has expired; read it.
pub(super) const INSERT_HELD: &str = "
INSERT INTO callonce_calls
    (key, digest, key_version, conversation_id, turn_index, name, ordinal, args, meta,
     response_id, last_response_id, effect, timeout_ms, sent_as,
     state, attempt, claimed_at, last_claimed_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9,
       $10, $10, $11, $12, $13,
       'held', 0, now(), now()
WHERE $14::bigint IS NULL OR $14::bigint > (EXTRACT(epoch FROM now()) * 1000000)::bigint
ON CONFLICT (key) DO NOTHING
RETURNING attempt";

/// Holds a row that is known not to have run and that nobody has approved.
///
/// Parameters: key, claim seen. Zero rows: it is no longer as it was read.
pub(super) const HOLD: &str = "
UPDATE callonce_calls
SET state = 'held', outcome = NULL
WHERE key = $1
  AND state = 'not_run'
  AND claim IS NOT DISTINCT FROM $2
  AND approved_at IS NULL
RETURNING attempt";

/// Lets a held row run; it is not held again.
///
/// Parameters: key, who, why. Zero rows: it is not held.
pub(super) const APPROVE: &str = "
WITH approved AS (
    UPDATE callonce_calls
    SET state = 'not_run', approved_at = now(), settled_at = now(), outcome = NULL
    WHERE key = $1
      AND state = 'held'
    RETURNING key, claim, attempt
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, decided_by, reason)
    SELECT key, 'approved', claim, attempt, $2, $3 FROM approved
)
SELECT attempt FROM approved";

/// Says of a held row that it may not run; it stays held, and can still be approved.
///
/// Parameters: key, who, why, outcome. Zero rows: it is not held.
pub(super) const DENY: &str = "
WITH denied AS (
    UPDATE callonce_calls
    SET outcome = $4
    WHERE key = $1
      AND state = 'held'
    RETURNING key, claim, attempt
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, decided_by, reason)
    SELECT key, 'denied', claim, attempt, $2, $3 FROM denied
)
SELECT attempt FROM denied";

/// Settles an unknown row by evidence: a probe's answer that counts, or a person's word.
///
/// Parameters: key, claim seen, new state, outcome, event, worker, who, why, how long after the
/// row became unknown and its last attempt's time-out it counts (null: the caller has waited).
/// Zero rows: it is no longer as it was read, or it is too early.
pub(super) const PROVE: &str = "
WITH proven AS (
    UPDATE callonce_calls
    SET state = $3, outcome = $4, lapses = 0, settled_at = now(),
        maybe_since = CASE WHEN $3 = 'not_run' THEN NULL ELSE maybe_since END,
        too_many = too_many AND $3 <> 'not_run'
    WHERE key = $1
      AND state = 'unknown'
      AND claim IS NOT DISTINCT FROM $2
      AND ($9::bigint IS NULL
           OR settled_at + (timeout_ms + $9::bigint) * interval '1 millisecond' <= now())
    RETURNING key, claim, attempt, outcome
), noted AS (
    INSERT INTO callonce_history
        (key, event, claim, attempt, worker, decided_by, reason, detail)
    SELECT key, $5, claim, attempt, $6, $7, $8, outcome FROM proven
)
SELECT attempt FROM proven";

/// Notes in a key's history what did not go the ordinary way, once.
///
/// Parameters: key, event, claim, attempt, worker, detail.
pub(super) const NOTE: &str = "
INSERT INTO callonce_history (key, event, claim, attempt, worker, detail)
SELECT $1::bytea, $2::text, $3::uuid, $4::integer, $5::text, $6::bytea
WHERE NOT EXISTS (
    SELECT FROM callonce_history
    WHERE key = $1 AND event = $2 AND claim IS NOT DISTINCT FROM $3 AND detail = $6
)";

/// Reads how earlier attempts' requests ended that did not end the ordinary way.
///
/// Parameters: key.
pub(super) const TRAILS: &str = "
SELECT detail
FROM callonce_history
WHERE key = $1 AND event = 'requests' AND detail IS NOT NULL
ORDER BY id";

/// Says which of many waits are over: the claim that was seen is no longer in flight, or its lease
/// has run out.
///
/// Parameters: keys, claims seen (arrays of one length). Rows: places in the arrays, from 1.
pub(super) const WATCH: &str = "
SELECT w.place
FROM unnest($1::bytea[], $2::uuid[]) WITH ORDINALITY AS w (key, claim, place)
LEFT JOIN callonce_calls c
    ON c.key = ANY (ARRAY[w.key])
   AND c.claim = w.claim
   AND c.state = 'in_flight'
   AND c.lease_until >= now()
WHERE c.key IS NULL";

/// Counts an event stream of a tool that ended without its terminal event.
///
/// Parameters: tool.
pub(super) const COUNT_UNENDED: &str = "
INSERT INTO callonce_unended_streams (tool, streams)
VALUES ($1, 1)
ON CONFLICT (tool) DO UPDATE
SET streams = callonce_unended_streams.streams + 1, last_at = clock_timestamp()";

/// Lists the tools whose event streams ended without a terminal event.
pub(super) const UNENDED: &str = "
SELECT tool, streams,
       to_char(last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS last_at
FROM callonce_unended_streams
ORDER BY tool";

/// Takes a tool off that list. Zero rows: it was not on it.
///
/// Parameters: tool.
pub(super) const MENDED: &str =
    "DELETE FROM callonce_unended_streams WHERE tool = $1 RETURNING streams";

/// Reads rows.
///
/// Parameters: keys, expires at (arrays of one length). Rows: one for each place whose key has a row,
/// with the place, from 1.
pub(super) const READ: &str = "
SELECT a.place, digest, conversation_id, turn_index, name, ordinal, response_id,
       effect, timeout_ms, sent_as, state, claim, attempt, lapses,
       too_many, late_completion, approved_at IS NOT NULL AS approved, worker, outcome, pruned_at IS NOT NULL AS pruned,
       (EXTRACT(epoch FROM now()) * 1000000)::bigint AS now_us,
       (EXTRACT(epoch FROM lease_until) * 1000000)::bigint AS lease_until_us,
       (EXTRACT(epoch FROM maybe_since) * 1000000)::bigint AS maybe_since_us,
       (EXTRACT(epoch FROM last_claimed_at) * 1000000)::bigint AS last_claimed_at_us,
       (EXTRACT(epoch FROM settled_at) * 1000000)::bigint AS settled_at_us,
       COALESCE(a.expires_at_us <= (EXTRACT(epoch FROM now()) * 1000000)::bigint, false) AS expired
FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS a (key, expires_at_us, place)
JOIN callonce_calls c ON c.key = ANY (ARRAY[a.key])";

/// Whether a time of a job has passed.
///
/// Parameters: expires at.
pub(super) const EXPIRED: &str =
    "SELECT $1::bigint <= (EXTRACT(epoch FROM now()) * 1000000)::bigint";

/// Claims a row that is known not to have run.
///
/// Parameters: key, claim seen, new claim, worker, lease, effect, time-out, `sent_as`, args,
/// expires at, whether it needs approval.
/// Zero rows: it is no longer as it was read, or it may not run, or the call has expired.
pub(super) const RECLAIM: &str = "
UPDATE callonce_calls
SET state = 'in_flight', claim = $3, attempt = attempt + 1, worker = $4,
    lease_until = now() + $5::bigint * interval '1 millisecond',
    effect = $6, timeout_ms = $7, sent_as = $8, args = COALESCE(args, $9), pruned_at = NULL,
    last_claimed_at = now(), outcome = NULL, settled_at = NULL
WHERE key = $1
  AND state = 'not_run'
  AND claim IS NOT DISTINCT FROM $2
  AND (approved_at IS NOT NULL OR NOT $11)
  AND ($10::bigint IS NULL OR $10::bigint > (EXTRACT(epoch FROM now()) * 1000000)::bigint)
RETURNING attempt, args, NULL::bigint AS maybe_age_ms, timeout_ms";

/// Claims an unknown keyed row, to send it again under the same key.
///
/// Parameters: key, claim seen, new claim, worker, lease, time-out, `sent_as`, key memory, the
/// registry's effect. Zero rows: it is no longer as it was read, or no longer safe to send.
pub(super) const RESEND: &str = "
UPDATE callonce_calls
SET state = 'in_flight', claim = $3, attempt = attempt + 1, worker = $4,
    lease_until = now() + $5::bigint * interval '1 millisecond',
    timeout_ms = GREATEST(timeout_ms, $6),
    maybe_since = COALESCE(maybe_since, last_claimed_at),
    last_claimed_at = now(), outcome = NULL, settled_at = NULL
WHERE key = $1
  AND state = 'unknown'
  AND effect = 'keyed_write'
  AND $9::text = 'keyed_write'
  AND NOT too_many
  AND NOT late_completion
  AND sent_as = $7
  AND claim IS NOT DISTINCT FROM $2
  AND ($8::bigint IS NULL OR now() + $6::bigint * interval '1 millisecond'
       <= COALESCE(maybe_since, last_claimed_at) + $8::bigint * interval '1 millisecond')
RETURNING attempt, args, timeout_ms,
          (EXTRACT(epoch FROM now() - maybe_since) * 1000)::bigint AS maybe_age_ms";

/// Claims a keyed row whose lease ran out, to send it again under the same key.
///
/// Parameters: as for [`RESEND`], then `max_attempts`. Zero rows: as there.
pub(super) const TAKE_OVER: &str = "
WITH taken AS (
    UPDATE callonce_calls
    SET claim = $3, attempt = attempt + 1, lapses = lapses + 1, worker = $4,
        lease_until = now() + $5::bigint * interval '1 millisecond',
        timeout_ms = GREATEST(timeout_ms, $6),
        maybe_since = COALESCE(maybe_since, last_claimed_at),
        last_claimed_at = now()
    WHERE key = $1
      AND state = 'in_flight'
      AND effect = 'keyed_write'
      AND $9::text = 'keyed_write'
      AND NOT too_many
      AND NOT late_completion
      AND sent_as = $7
      AND claim = $2
      AND lease_until < now()
      AND lapses < $10
      AND ($8::bigint IS NULL OR now() + $6::bigint * interval '1 millisecond'
           <= COALESCE(maybe_since, last_claimed_at) + $8::bigint * interval '1 millisecond')
    RETURNING key, claim, attempt, worker, args, maybe_since, timeout_ms
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, worker)
    SELECT key, 'takeover', claim, attempt, worker FROM taken
)
SELECT attempt, args, timeout_ms,
       (EXTRACT(epoch FROM now() - maybe_since) * 1000)::bigint AS maybe_age_ms
FROM taken";

/// Settles a row whose lease ran out as unknown; the claim is kept.
///
/// Parameters: key, claim seen, whether too many attempts lapsed, outcome.
/// Zero rows: it is no longer as it was read.
pub(super) const LAPSE: &str = "
WITH lapsed AS (
    UPDATE callonce_calls
    SET state = 'unknown', too_many = $3, outcome = $4, settled_at = now()
    WHERE key = $1
      AND state = 'in_flight'
      AND claim = $2
      AND lease_until < now()
      AND NOT late_completion
    RETURNING key, claim, attempt, worker, outcome
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, worker, detail)
    SELECT key, 'became_unknown', claim, attempt, worker, outcome FROM lapsed
)
SELECT attempt FROM lapsed";

/// Completes a row from the completion that came late, while another attempt ran.
///
/// Parameters: key, claim, whether it is the caller's own (else its lease must be over).
/// Zero rows: there is no such completion, or the row is no longer as it was read.
pub(super) const ADOPT: &str = "
UPDATE callonce_calls
SET state = 'completed', lapses = 0, settled_at = now(),
    outcome = (SELECT detail
               FROM callonce_history
               WHERE key = $1 AND event = 'late_completion'
               ORDER BY id
               LIMIT 1)
WHERE key = $1
  AND state = 'in_flight'
  AND claim = $2
  AND late_completion
  AND ($3 OR lease_until < now())
RETURNING attempt";

/// Renews the leases of many claims, in key order so that no two batches can deadlock.
///
/// Parameters: keys, claims, leases (arrays of one length). Rows: the claims that still stand.
pub(super) const RENEW: &str = "
UPDATE callonce_calls c
SET lease_until = now() + a.lease_ms * interval '1 millisecond'
FROM (
    SELECT *
    FROM unnest($1::bytea[], $2::uuid[], $3::bigint[]) AS a (key, claim, lease_ms)
    ORDER BY key
) a
WHERE c.key = ANY (ARRAY[a.key])
  AND c.claim = a.claim
  AND c.state = 'in_flight'
RETURNING c.claim";

/// Confirms a claim that was not answered, by renewing it.
///
/// Parameters: key, claim, lease. Zero rows: the claim does not stand.
pub(super) const CONFIRM: &str = "
UPDATE callonce_calls
SET lease_until = now() + $3::bigint * interval '1 millisecond'
WHERE key = $1
  AND claim = $2
  AND state = 'in_flight'
RETURNING attempt, args, timeout_ms,
          (EXTRACT(epoch FROM now() - maybe_since) * 1000)::bigint AS maybe_age_ms";

/// Settles rows as completed, the ordinary way, in key order so that no two batches can deadlock.
///
/// Parameters: keys, claims, outcomes (arrays of one length). Rows: the claims that were settled. One
/// that is not there: see [`SETTLE_COMPLETED_LATE`].
pub(super) const SETTLE_COMPLETED: &str = "
UPDATE callonce_calls c
SET state = 'completed', outcome = a.outcome, lapses = 0, settled_at = now()
FROM (
    SELECT *
    FROM unnest($1::bytea[], $2::uuid[], $3::bytea[]) AS a (key, claim, outcome)
    ORDER BY key
) a
WHERE c.key = ANY (ARRAY[a.key])
  AND c.claim = a.claim
  AND c.state = 'in_flight'
RETURNING c.claim";

/// Settles a row as completed that had ended otherwise, under this claim or another.
///
/// Parameters: key, claim, outcome, attempt, worker.
/// Zero rows: another attempt runs, or the row is completed or gone.
pub(super) const SETTLE_COMPLETED_LATE: &str = "
WITH settled AS (
    UPDATE callonce_calls
    SET state = 'completed', outcome = $3, lapses = 0, settled_at = now()
    WHERE key = $1
      AND (state IN ('unknown', 'not_run', 'held') OR (state = 'in_flight' AND claim = $2))
    RETURNING key, outcome
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, worker, detail)
    SELECT key, 'late_completion', $2, $4, $5, outcome FROM settled
)
SELECT $4::integer AS attempt FROM settled";

/// Keeps a completion while another attempt runs, and marks the row so that this attempt looks
/// here before it settles as anything but completed.
///
/// Parameters: key, claim, outcome, attempt, worker.
/// Zero rows: no other attempt runs, or a completion is kept already.
pub(super) const KEEP_COMPLETION: &str = "
WITH marked AS (
    UPDATE callonce_calls
    SET late_completion = true
    WHERE key = $1
      AND state = 'in_flight'
      AND claim <> $2
      AND NOT late_completion
    RETURNING key
)
INSERT INTO callonce_history (key, event, claim, attempt, worker, detail)
SELECT key, 'late_completion', $2, $4, $5, $3 FROM marked
RETURNING attempt";

/// Inserts a completed row where there is none: a failover lost it.
///
/// Parameters: key, digest, key version, conversation, turn, name, ordinal, args, meta, response,
/// effect, time-out, `sent_as`, claim, attempt, worker, outcome. Zero rows: there is a row.
pub(super) const INSERT_COMPLETED: &str = "
WITH inserted AS (
    INSERT INTO callonce_calls
        (key, digest, key_version, conversation_id, turn_index, name, ordinal, args, meta,
         response_id, last_response_id, effect, timeout_ms, sent_as,
         state, claim, attempt, worker, outcome, claimed_at, last_claimed_at, settled_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,
            $10, $10, $11, $12, $13,
            'completed', $14, $15, $16, $17, now(), now(), now())
    ON CONFLICT (key) DO NOTHING
    RETURNING key, claim, attempt, worker
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, worker)
    SELECT key, 'row_was_lost', claim, attempt, worker FROM inserted
)
SELECT attempt FROM inserted";

/// Settles a row as not run.
///
/// Parameters: key, claim, outcome, whether it is evident that no earlier attempt acted.
/// Zero rows: something may have been received, or the row is another's; settle as unknown instead.
pub(super) const SETTLE_NOT_RUN: &str = "
UPDATE callonce_calls
SET state = 'not_run', outcome = $3, lapses = 0, settled_at = now(), maybe_since = NULL,
    too_many = too_many AND NOT $4
WHERE key = $1
  AND claim = $2
  AND state IN ('in_flight', 'unknown')
  AND (maybe_since IS NULL OR $4)
  AND NOT late_completion
RETURNING attempt";

/// Settles a row as unknown.
///
/// Parameters: key, claim, outcome. Zero rows: read it.
pub(super) const SETTLE_UNKNOWN: &str = "
WITH settled AS (
    UPDATE callonce_calls
    SET state = 'unknown', outcome = $3, lapses = 0, settled_at = now()
    WHERE key = $1
      AND claim = $2
      AND state = 'in_flight'
      AND NOT late_completion
    RETURNING key, claim, attempt, worker, outcome
), noted AS (
    INSERT INTO callonce_history (key, event, claim, attempt, worker, detail)
    SELECT key, 'became_unknown', claim, attempt, worker, outcome FROM settled
)
SELECT attempt FROM settled";

/// Counts a start of a suspect delivery.
///
/// Parameters: digest of its body.
pub(super) const COUNT_START: &str = "
INSERT INTO callonce_suspects (body_digest, starts)
VALUES ($1, 1)
ON CONFLICT (body_digest) DO UPDATE
SET starts = callonce_suspects.starts + 1, last_at = clock_timestamp()
RETURNING starts";

/// Forgets a suspect that came to an end.
///
/// Parameters: digest of its body.
pub(super) const CLEAR_SUSPECT: &str = "DELETE FROM callonce_suspects WHERE body_digest = $1";

/// Reads a row for a person.
///
/// Parameters: key. Zero rows: there is none.
pub(super) const SHOW: &str = "
SELECT key, digest, state, conversation_id, turn_index, name, ordinal, args, meta, response_id,
       effect, attempt, worker, outcome, approved_at IS NOT NULL AS approved, pruned_at IS NOT NULL AS pruned,
       to_char(lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS lease_until,
       to_char(claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS claimed_at,
       to_char(settled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS settled_at
FROM callonce_calls
WHERE key = $1";

/// Reads the history of a key, oldest first.
///
/// Parameters: key.
pub(super) const HISTORY: &str = "
SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS at,
       event, attempt, worker, decided_by, reason, detail
FROM callonce_history
WHERE key = $1
ORDER BY id";

/// Lists rows, last claimed first, without their bodies.
///
/// Parameters: state (text or null for any), limit.
pub(super) const LIST: &str = "
SELECT key, state, state = 'held' AND outcome IS NOT NULL AS denied,
       conversation_id, turn_index, name, ordinal, effect, attempt, worker,
       to_char(last_claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
           AS last_claimed_at,
       to_char(claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS claimed_at,
       to_char(settled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS settled_at
FROM callonce_calls
WHERE $1::text IS NULL OR state = $1
ORDER BY last_claimed_at DESC
LIMIT $2";
