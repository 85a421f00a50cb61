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
