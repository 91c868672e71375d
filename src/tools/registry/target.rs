//! A tool's `http` table: where it is, what goes with a request, what its statuses mean.

use reqwest::Url;
use reqwest::header::{self, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::read::{Context, TimeLimits, answer, fill};
use super::source::{Found, Section};
use crate::outcome::EffectClass;
use crate::tools::http::{
    DEADLINE, HiddenUrl, HttpSettings, KEY, KeyIn, MissingTerminal, Pointer, ProbeSettings,
    ProbeUrl, Statuses, StreamSettings, answers_for_good,
};
use crate::tools::{ProbePolicy, SETTLE_DELAY_DEFAULT};

/// Together with the headers far below the buffer of hyper (about 400 KiB): a request's head must
/// never be flushed before its body was asked for.
const URL_BYTES_MAX: usize = 8 * 1024;

/// All header values of one tool; more than this is refused by ordinary servers.
const HEADERS_BYTES_MAX: usize = 32 * 1024;

/// A name in the body or in an event stream; a longer one is a mistake.
const NAME_BYTES_MAX: usize = 256;

const KEY_HEADER: &str = "Idempotency-Key";
const NOT_RUN_STATUS: [u16; 3] = [503, 429, 425];

/// Headers that are the request's own: a second one would change what is sent, or who ends it.
const OWN_HEADERS: [HeaderName; 12] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("traceparent"),
];

/// Reads the table to its end, whatever is wrong with it; none where that leaves no tool.
pub(super) fn http(
    table: &Section<'_>,
    context: &Context,
    effect: Option<EffectClass>,
    limits: TimeLimits,
) -> Option<(HttpSettings, Option<ProbeSettings>)> {
    let url = url(table, context, |text| checked(text).map(HiddenUrl));
    let key = key(table);
    let headers = headers(table, context, &key);
    let replay_header = replay_header(table);
    let statuses = statuses(table);
    let answer = answer(table);
    let stream = stream(table);
    let probe = table.table("probe").map(|table| {
        if effect == Some(EffectClass::Read) {
            table.problem(table.at(), "a read is asked again as it is; expected no probe");
        }
        let at = url.as_ref().and_then(Option::as_ref);
        probe(&table, context, at.map(|HiddenUrl(url)| url))
    });
    table.finish();
    let settings = HttpSettings {
        url: url?,
        headers,
        key,
        replay_header,
        statuses,
        answer,
        stream,
        effect: effect?,
        timeout: limits.timeout,
        connect_timeout: limits.connect_timeout,
        result_bytes_max: context.result_bytes_max,
    };
    match probe {
        Some(probe) => Some((settings, Some(probe?))),
        None => Some((settings, None)),
    }
}

/// How a tool is asked for a call's state by its key.
///
/// It is asked with the tool's own headers, so that no other server may be named.
fn probe(table: &Section<'_>, context: &Context, tool: Option<&Url>) -> Option<ProbeSettings> {
    const SAMPLE: &str = "0123456789abcdef";
    let url = url(table, context, |text| {
        if text.matches(KEY).count() != 1 {
            return Err("has not exactly one `{key}`");
        }
        let url = checked(&text.replace(KEY, SAMPLE))?;
        // Elsewhere it would choose the host, or be lost, and every call would have one state.
        let kept = [Some(url.path()), url.query()].into_iter().flatten();
        if !kept.into_iter().any(|part| part.contains(SAMPLE)) {
            return Err("has its `{key}` neither in the path nor in the query");
        }
        if tool.is_some_and(|tool| tool.origin() != url.origin()) {
            return Err("names another server than the tool's");
        }
        Ok(ProbeUrl::new(text))
    });
    let required = |field: &'static str| {
        if table.value(field).is_none() {
            table.problem(table.at(), format!("no `{field}`; expected one"));
        }
    };
    required("state_field");
    required("completed");
    let state = pointer(table, "state_field");
    let result = pointer(table, "result_field");
    let lists = ["completed", "running", "failed"].map(|field| table.texts(field));
    let mut seen: Vec<&str> = Vec::new();
    for Found { value, at } in lists.iter().flatten().flatten() {
        if seen.contains(value) {
            let message = format!("\"{}\" is there twice; expected one", value.escape_debug());
            table.problem(*at, message);
        }
        seen.push(value);
    }
    if let Some([]) = lists[0].as_deref() {
        table.problem(table.at(), "`completed` is empty; expected the states of a completed call");
    }
    let not_found_is_not_run = match table.text("not_found") {
        None => false,
        Some(Found { value: "unknown", .. }) => false,
        Some(Found { value: "not_run", .. }) => true,
        Some(Found { value, at }) => {
            let value = value.escape_debug();
            let expected = "expected \"unknown\" or \"not_run\"";
            table.problem(at, format!("unknown not_found \"{value}\"; {expected}"));
            false
        }
    };
    let settle_delay = table.duration("settle_delay");
    let deadline = table.duration("deadline");
    table.finish();
    let [completed, running, failed] = lists.map(|list| {
        list.unwrap_or_default().into_iter().map(|found| found.value.to_owned()).collect()
    });
    Some(ProbeSettings {
        url: url?,
        state: state?,
        completed,
        running,
        failed,
        result,
        policy: ProbePolicy {
            settle_delay: settle_delay.map_or(SETTLE_DELAY_DEFAULT, |delay| delay.value),
            deadline: deadline.map_or(DEADLINE, |deadline| deadline.value),
            not_found_is_not_run,
        },
    })
}

fn pointer(table: &Section<'_>, field: &'static str) -> Option<Pointer> {
    let Found { value, at } = table.text(field)?;
    let pointer = Pointer::parse(value);
    if pointer.is_none() {
        table.problem(at, format!("`{field}` is no JSON Pointer; expected one such as /state"));
    }
    pointer
}

/// The URL; inside, none where its variables are missing and nobody needs them.
fn url<T>(
    table: &Section<'_>,
    context: &Context,
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Option<Option<T>> {
    const EXPECTED: &str = "expected http:// or https:// with a host";
    if table.value("url").is_none() {
        table.problem(table.at(), format!("no `url`; {EXPECTED}"));
        return None;
    }
    let template = table.text("url")?;
    let begins_right = ["http://", "https://", "${"].iter().any(|start| {
        template.value.get(..start.len()).is_some_and(|s| s.eq_ignore_ascii_case(start))
    });
    if !begins_right {
        table.problem(template.at, format!("`url` is no such address; {EXPECTED}"));
        return None;
    }
    let Some(text) = fill(table, context, "`url`", template) else {
        return Some(None);
    };
    match read(text.expose_secret()) {
        Ok(url) => Some(Some(url)),
        Err(wrong) => {
            table.problem(template.at, format!("`url` {wrong}; {EXPECTED}"));
            None
        }
    }
}

/// Says what is wrong with a URL without a word of it.
pub(in crate::tools) fn checked(text: &str) -> Result<Url, &'static str> {
    if text.len() > URL_BYTES_MAX {
        return Err("is too long");
    }
    let url = Url::parse(text).map_err(|_| "is no URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("is neither http nor https");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("has no host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a user name or a password, which belong in `headers`");
    }
    if url.fragment().is_some() {
        return Err("has a fragment, which is never sent");
    }
    Ok(url)
}

/// Where the key goes: one place.
fn key(table: &Section<'_>) -> KeyIn {
    let header = key_header(table);
    let Some(field) = table.text("key_field") else {
        return KeyIn::Header(header);
    };
    if table.value("key_header").is_some() {
        let expected = "expected either `key_header` or `key_field`";
        table.problem(field.at, format!("two places for the key; {expected}"));
    }
    name(table, "key_field", field, "the name of a member that no argument has");
    KeyIn::Field(field.value.to_owned())
}

/// Looks at a name that is sent or looked for as it stands.
fn name(table: &Section<'_>, field: &str, name: Found<&str>, expected: &str) {
    let wrong = if name.value.is_empty() {
        "is empty"
    } else if name.value.len() > NAME_BYTES_MAX {
        "is too long"
    } else if name.value.chars().any(char::is_control) {
        "holds a control character"
    } else {
        return;
    };
    table.problem(name.at, format!("`{field}` {wrong}; expected {expected}"));
}

fn replay_header(table: &Section<'_>) -> Option<HeaderName> {
    let Found { value, at } = table.text("replay_header")?;
    HeaderName::try_from(value)
        .map_err(|_| {
            let expected = "expected one such as Idempotent-Replayed";
            table.problem(at, format!("`replay_header` is no header name; {expected}"));
        })
        .ok()
}

fn stream(table: &Section<'_>) -> StreamSettings {
    let default = StreamSettings::default();
    let Some(table) = table.table("stream") else {
        return default;
    };
    let event = |field: &'static str, default: String| match table.text(field) {
        Some(found) => {
            name(&table, field, found, "the name of an event");
            Found { value: found.value.to_owned(), at: found.at }
        }
        None => Found { value: default, at: table.at() },
    };
    let terminal_event = event("terminal_event", default.terminal_event);
    let error_event = event("error_event", default.error_event);
    if terminal_event.value == error_event.value {
        let at = error_event.at.max(terminal_event.at);
        let expected = "expected events of two names";
        table.problem(at, format!("`terminal_event` and `error_event` are one; {expected}"));
    }
    let idle_timeout = table.duration("idle_timeout");
    let missing_terminal = missing_terminal(&table).unwrap_or(default.missing_terminal);
    table.finish();
    StreamSettings {
        declared: true,
        terminal_event: terminal_event.value,
        error_event: error_event.value,
        idle_timeout: idle_timeout.map_or(default.idle_timeout, |idle| idle.value),
        missing_terminal,
    }
}

fn missing_terminal(table: &Section<'_>) -> Option<MissingTerminal> {
    let Found { value, at } = table.text("missing_terminal")?;
    match value {
        "completed" => Some(MissingTerminal::Completed),
        "unknown" => Some(MissingTerminal::Unknown),
        other => {
            let other = other.escape_debug();
            let expected = "expected \"completed\" or \"unknown\"";
            table.problem(at, format!("unknown missing_terminal \"{other}\"; {expected}"));
            None
        }
    }
}

fn key_header(table: &Section<'_>) -> HeaderName {
    let text = table.text("key_header");
    let at = text.map_or(table.at(), |text| text.at);
    let text = text.map_or(KEY_HEADER, |text| text.value);
    match HeaderName::try_from(text) {
        Ok(name) if !OWN_HEADERS.contains(&name) => name,
        Ok(_) => {
            table.problem(at, "`key_header` is a header of the request itself; expected another");
            HeaderName::from_static("idempotency-key")
        }
        Err(_) => {
            table.problem(
                at,
                "`key_header` is no header name; expected one such as Idempotency-Key",
            );
            HeaderName::from_static("idempotency-key")
        }
    }
}

fn headers(table: &Section<'_>, context: &Context, key: &KeyIn) -> Vec<(HeaderName, SecretString)> {
    let Some(table) = table.table("headers") else {
        return Vec::new();
    };
    let mut headers: Vec<(HeaderName, SecretString)> = Vec::new();
    let mut bytes = 0;
    for (name, value) in table.entries() {
        let shown = name.value.escape_debug();
        let Some(value) = value.as_str() else {
            table.problem(name.at, format!("`{shown}` is no text; expected a header's value"));
            continue;
        };
        let Ok(header) = HeaderName::try_from(name.value) else {
            table
                .problem(name.at, format!("`{shown}` is no header name; expected letters and `-`"));
            continue;
        };
        if *key == KeyIn::Header(header.clone()) {
            let message = format!("`{shown}` carries the key; expected no value of its own for it");
            table.problem(name.at, message);
            continue;
        }
        if OWN_HEADERS.contains(&header) {
            let message =
                format!("`{shown}` is a header of the request itself; expected none here");
            table.problem(name.at, message);
            continue;
        }
        if headers.iter().any(|(other, _)| *other == header) {
            table.problem(name.at, format!("`{shown}` is there twice; expected it once"));
            continue;
        }
        let template = Found { value, at: name.at };
        let Some(text) = fill(&table, context, &format!("`{shown}`"), template) else {
            continue;
        };
        if HeaderValue::from_str(text.expose_secret()).is_err() {
            let expected = "expected no control characters";
            table.problem(name.at, format!("`{shown}` has no legal header value; {expected}"));
            continue;
        }
        bytes += name.value.len() + text.expose_secret().len();
        headers.push((header, text));
    }
    if bytes > HEADERS_BYTES_MAX {
        let message =
            format!("the headers are too long; expected at most {HEADERS_BYTES_MAX} bytes");
        table.problem(table.at(), message);
    }
    headers
}

fn statuses(table: &Section<'_>) -> Statuses {
    let not_run =
        list(table, "not_run_status", "400 to 599", |status| (400..600).contains(&status));
    let in_progress =
        list(table, "in_progress_status", "200 to 599", |status| (200..600).contains(&status));
    let duplicate =
        list(table, "duplicate_status", "200 to 599", |status| (200..600).contains(&status));
    let replayed = list(
        table,
        "replayed_status",
        "301, 307, 308, or 400 to 499 without 408",
        answers_for_good,
    );
    let key_reused = list(table, "key_reused_status", "400 to 499 without 408", |status| {
        (400..500).contains(&status) && answers_for_good(status)
    });
    let not_run = not_run
        .unwrap_or_else(|| NOT_RUN_STATUS.map(|value| Found { value, at: table.at() }).to_vec());
    let (in_progress, duplicate, replayed, key_reused) = (
        in_progress.unwrap_or_default(),
        duplicate.unwrap_or_default(),
        replayed.unwrap_or_default(),
        key_reused.unwrap_or_default(),
    );
    // `replayed_status` adds to what a completed answer is worth, so it may name a duplicate's.
    for (lists, one, other) in [
        ("not_run_status and in_progress_status", &not_run, &in_progress),
        ("not_run_status and duplicate_status", &not_run, &duplicate),
        ("not_run_status and replayed_status", &not_run, &replayed),
        ("in_progress_status and duplicate_status", &in_progress, &duplicate),
        ("in_progress_status and replayed_status", &in_progress, &replayed),
        ("not_run_status and key_reused_status", &not_run, &key_reused),
        ("in_progress_status and key_reused_status", &in_progress, &key_reused),
        ("duplicate_status and key_reused_status", &duplicate, &key_reused),
        ("replayed_status and key_reused_status", &replayed, &key_reused),
    ] {
        for Found { value, at } in other {
            if one.iter().any(|found| found.value == *value) {
                let message = format!("{value} is in {lists}; expected one meaning of a status");
                table.problem(*at, message);
            }
        }
    }
    let plain = |list: Vec<Found<u16>>| list.into_iter().map(|found| found.value).collect();
    Statuses {
        not_run: plain(not_run),
        in_progress: plain(in_progress),
        duplicate: plain(duplicate),
        replayed: plain(replayed),
        key_reused: plain(key_reused),
    }
}

fn list(
    table: &Section<'_>,
    field: &'static str,
    expected: &str,
    fits: impl Fn(u16) -> bool,
) -> Option<Vec<Found<u16>>> {
    let checked = |Found { value, at }: Found<u32>| match u16::try_from(value) {
        Ok(value) if fits(value) => Some(Found { value, at }),
        Ok(_) | Err(_) => {
            table.problem(at, format!("{value} cannot be in `{field}`; expected {expected}"));
            None
        }
    };
    Some(table.counts(field)?.into_iter().filter_map(checked).collect())
}
