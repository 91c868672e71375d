//! A tool's `http` table: where it is, what goes with a request, what its statuses mean.

use reqwest::Url;
use reqwest::header::{self, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::read::{Context, TimeLimits};
use super::source::{Found, Section};
use super::variables::{Filled, TemplateError};
use crate::outcome::EffectClass;
use crate::tools::http::{HiddenUrl, HttpSettings, Statuses, answers_for_good};

/// Together with the headers far below the buffer of hyper (about 400 KiB): a request's head must
/// never be flushed before its body was asked for.
const URL_BYTES_MAX: usize = 8 * 1024;

/// All header values of one tool; more than this is refused by ordinary servers.
const HEADERS_BYTES_MAX: usize = 32 * 1024;

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
) -> Option<HttpSettings> {
    let url = url(table, context);
    let key_header = key_header(table);
    let headers = headers(table, context, &key_header.value);
    let statuses = statuses(table);
    if let Some(Found { value, at }) = table.text("answer")
        && value != "json"
    {
        let value = value.escape_debug();
        table.problem(at, format!("answer = \"{value}\" is not built yet; expected \"json\""));
    }
    for field in ["stream", "probe", "key_field", "replay_header"] {
        table.not_built(field);
    }
    table.finish();
    Some(HttpSettings {
        url: url?,
        headers,
        key_header: key_header.value,
        statuses,
        effect: effect?,
        timeout: limits.timeout,
        connect_timeout: limits.connect_timeout,
        result_bytes_max: context.result_bytes_max,
    })
}

/// Fills variables in; none where some are missing, which is reported here.
fn fill(
    table: &Section<'_>,
    context: &Context,
    what: &str,
    template: Found<&str>,
) -> Option<SecretString> {
    match context.variables.fill(template.value) {
        Ok(Filled::Text(text)) => Some(text),
        Ok(Filled::Missing(names)) => {
            for name in names {
                if context.variables.are_required() {
                    let message = format!(
                        "{what} needs the variable `{name}`, which is not set; expected it in the \
                         environment"
                    );
                    table.problem(template.at, message);
                } else {
                    table.source().missing_variable(template.at, name);
                }
            }
            None
        }
        Err(TemplateError) => {
            let message =
                format!("{what} has a `${{` that begins no variable; expected `${{NAME}}`");
            table.problem(template.at, message);
            None
        }
    }
}

/// The URL; inside, none where its variables are missing and nobody needs them.
fn url(table: &Section<'_>, context: &Context) -> Option<Option<HiddenUrl>> {
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
    match checked(text.expose_secret()) {
        Ok(url) => Some(Some(HiddenUrl(url))),
        Err(wrong) => {
            table.problem(template.at, format!("`url` {wrong}; {EXPECTED}"));
            None
        }
    }
}

/// Says what is wrong with a URL without a word of it.
fn checked(text: &str) -> Result<Url, &'static str> {
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

fn key_header(table: &Section<'_>) -> Found<HeaderName> {
    let text = table.text("key_header");
    let at = text.map_or(table.at(), |text| text.at);
    let text = text.map_or(KEY_HEADER, |text| text.value);
    let value = match HeaderName::try_from(text) {
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
    };
    Found { value, at }
}

fn headers(
    table: &Section<'_>,
    context: &Context,
    key_header: &HeaderName,
) -> Vec<(HeaderName, SecretString)> {
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
        if header == *key_header {
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
    let not_run = not_run
        .unwrap_or_else(|| NOT_RUN_STATUS.map(|value| Found { value, at: table.at() }).to_vec());
    let (in_progress, duplicate, replayed) = (
        in_progress.unwrap_or_default(),
        duplicate.unwrap_or_default(),
        replayed.unwrap_or_default(),
    );
    // `replayed_status` adds to what a completed answer is worth, so it may name a duplicate's.
    for (lists, one, other) in [
        ("not_run_status and in_progress_status", &not_run, &in_progress),
        ("not_run_status and duplicate_status", &not_run, &duplicate),
        ("not_run_status and replayed_status", &not_run, &replayed),
        ("in_progress_status and duplicate_status", &in_progress, &duplicate),
        ("in_progress_status and replayed_status", &in_progress, &replayed),
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
