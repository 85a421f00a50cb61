//! The wire format of lists and watches.

use std::borrow::Cow;
use std::collections::HashMap;

use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::CallError;

#[derive(Deserialize)]
pub(crate) struct Frame<'a> {
    #[serde(rename = "type", borrow)]
    pub(crate) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) object: &'a RawValue,
}

impl<'a> Frame<'a> {
    /// Reads a line of a watch. The object is not looked at if the line is as API servers write it.
    pub(crate) fn of(line: &'a str) -> Result<(Cow<'a, str>, &'a str), CallError> {
        let parts = || line.strip_prefix(r#"{"type":""#)?.split_once(r#"","object":"#);
        if let Some((kind, rest)) = parts().filter(|(kind, _)| kind.bytes().all(|byte| byte.is_ascii_uppercase()))
            && let Some(object) = rest.trim_end().strip_suffix('}').filter(|object| object.starts_with('{') && object.ends_with('}'))
        {
            return Ok((kind.into(), object));
        }
        let Self { kind, object } = read(line)?;
        Ok((kind, object.get()))
    }
}

#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    pub(crate) metadata: PageMeta,
    #[serde(borrow, default)]
    pub(crate) items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PageMeta {
    pub(crate) resource_version: String,
    pub(crate) r#continue: String,
    pub(crate) annotations: HashMap<String, String>,
}

#[derive(Default, Deserialize)]
pub(crate) struct Bookmark {
    pub(crate) metadata: PageMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ErrorStatus {
    pub(crate) code: u16,
    pub(crate) message: String,
    pub(crate) reason: String,
}

#[derive(Deserialize)]
pub(crate) struct Named {
    pub(crate) metadata: NamedMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NamedMeta {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) namespace: String,
    pub(crate) resource_version: String,
}

pub(crate) fn http_body(
    response: http::Response<kube::client::Body>,
) -> impl futures::TryStream<Ok = axum::body::Bytes, Error = std::io::Error> {
    axum::body::Body::new(response.into_body()).into_data_stream().map_err(std::io::Error::other)
}

pub(crate) fn read<'a, R: Deserialize<'a>>(json: &'a str) -> Result<R, CallError> {
    serde_json::from_str(json).map_err(|error| broken(&format!("the server's words cannot be read: {error}")))
}

pub(crate) fn broken(message: &str) -> CallError {
    CallError::no_answer(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_watch_is_read_however_it_is_written() {
        let plain = "{\"type\":\"ADDED\",\"object\":{\"a\":{\"b\":1}}}\n";
        let spaced = r#"{ "type": "ADDED", "object": {"a":{"b":1}} }"#;
        let turned = r#"{"object":{"a":{"b":1}},"type":"ADDED"}"#;
        for line in [plain, spaced, turned] {
            assert_eq!(Frame::of(line).unwrap(), ("ADDED".into(), r#"{"a":{"b":1}}"#), "{line}");
        }
        for broken in ["", "{}", r#"{"type":"ADDED","object":{"a":1}"#, r#"{"type":"ADDED","object":"#] {
            let object = Frame::of(broken).ok().map(|(_, object)| object.to_owned());
            assert!(object.is_none_or(|object| serde_json::from_str::<serde_json::Value>(&object).is_err()), "{broken}");
        }
    }
}
