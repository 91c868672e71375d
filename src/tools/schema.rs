//! A tool's JSON Schema, and what a call's arguments break of it.

use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use crate::call::reply::Violation;

/// More violations than this help nobody mend a call, and a reply must stay small.
pub const VIOLATIONS_MAX: usize = 20;

/// What a violation's pointer and its message may be long, in bytes: both can quote member names
/// of the arguments, which are as long as the caller likes.
const TEXT_BYTES_MAX: usize = 300;

/// A compiled schema.
pub(super) struct ArgsSchema {
    validator: Validator,
}

impl ArgsSchema {
    /// Compiles a schema; references leave it never, nothing is fetched.
    pub(super) fn compile(schema: &Value) -> Result<Self, String> {
        jsonschema::options()
            .offline()
            .build(schema)
            .map(|validator| Self { validator })
            .map_err(|error| describe(&error))
    }

    /// Arguments are checked by the strict reader of jobs before they come here, so that the
    /// ordinary JSON value below holds the same document.
    pub(super) fn validate(&self, args: &[u8]) -> Result<(), Vec<Violation>> {
        // Looked through for UTF-8 once as a whole, not string by string.
        let read = str::from_utf8(args).ok().and_then(|text| serde_json::from_str(text).ok());
        let Some(args): Option<Value> = read else {
            return Err(vec![Violation {
                pointer: String::new(),
                message: "the arguments cannot be read as JSON".to_owned(),
            }]);
        };
        if self.validator.is_valid(&args) {
            return Ok(());
        }
        let violations =
            self.validator.iter_errors(&args).take(VIOLATIONS_MAX).map(|error| violation(&error));
        Err(violations.collect())
    }
}

fn violation(error: &ValidationError<'_>) -> Violation {
    Violation {
        pointer: bounded(error.instance_path().to_string()),
        message: bounded(error.masked_with("this value").to_string()),
    }
}

fn describe(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
    bounded(format!("{error}{place}"))
}

fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text
}
