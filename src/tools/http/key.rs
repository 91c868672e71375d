//! Where a request carries the key: in a header, or in the body beside the arguments.

use std::collections::BTreeMap;

use bytes::Bytes;
use reqwest::header::HeaderName;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::tools::KeyPlace;

/// Where the requests of one tool carry the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tools) enum KeyIn {
    /// In this header.
    Header(HeaderName),
    /// In the body, as a member of this name, which no argument has.
    Field(String),
}

impl KeyIn {
    pub(super) fn place(&self) -> KeyPlace<'_> {
        match self {
            Self::Header(name) => KeyPlace::Header(name.as_str()),
            Self::Field(name) => KeyPlace::Field(name),
        }
    }
}

/// Whether an argument has the name of the field that carries the key.
pub(in crate::tools) fn is_taken(args: &[u8], field: &str) -> bool {
    let members: Result<BTreeMap<String, IgnoredAny>, _> = serde_json::from_slice(args);
    members.is_ok_and(|members| members.contains_key(field))
}

/// The arguments with the key as their first member; every other byte stays as it is.
pub(super) fn with_key(args: &[u8], field: &str, key: &str) -> Result<Bytes, &'static str> {
    const NO_OBJECT: &str = "the arguments are no JSON object";
    let members: BTreeMap<String, IgnoredAny> =
        serde_json::from_slice(args).map_err(|_| NO_OBJECT)?;
    if members.contains_key(field) {
        return Err("an argument has the name of the field that carries the key");
    }
    let open = args.iter().position(|byte| *byte == b'{').ok_or(NO_OBJECT)?;
    let (before, after) = args.split_at(open + 1);
    let (field, key) = (Value::from(field).to_string(), Value::from(key).to_string());
    let comma = if members.is_empty() { "" } else { "," };
    Ok([before, field.as_bytes(), b":", key.as_bytes(), comma.as_bytes(), after].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_stands_before_the_arguments_which_stay_as_they_are() {
        for (args, expected) in [
            ("{}", r#"{"k":"0f"}"#),
            (" \t{ } \n", " \t{\"k\":\"0f\" } \n"),
            (r#"{"a":1}"#, r#"{"k":"0f","a":1}"#),
            ("{ \"b\" : 1.0,\n\"a\":{\"k\":2} }", "{\"k\":\"0f\", \"b\" : 1.0,\n\"a\":{\"k\":2} }"),
        ] {
            assert_eq!(with_key(args.as_bytes(), "k", "0f").unwrap(), expected, "{args}");
        }
        let odd = with_key(b"{}", "a\"\\b", "0f").unwrap();
        assert_eq!(odd, r#"{"a\"\\b":"0f"}"#);
    }

    #[test]
    fn an_argument_of_the_same_name_is_refused_however_it_is_spelt() {
        for args in [r#"{"a":1,"key":null}"#, r#"{"\u006bey":1}"#] {
            let refused = with_key(args.as_bytes(), "key", "0f").unwrap_err();
            assert!(refused.contains("the name of the field"), "{refused}");
        }
        for args in ["[]", "1", "", "{\"a\":"] {
            let refused = with_key(args.as_bytes(), "key", "0f").unwrap_err();
            assert_eq!(refused, "the arguments are no JSON object", "{args}");
        }
    }
}
