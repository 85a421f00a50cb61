//! The `web` provider: an HTTP request.

use std::time::Duration;

use api::tkex::{Method, Web};
use planner::hookrun::arguments::{Place, fill};
use planner::jsonpath::JsonPath;
use serde_json::Value;
use url::Url;

use super::evaluate::{Reading, json};
use super::http::{Ask, NoAnswer, ask, url};
use super::target::Target;
use super::{Answer, Asker, Measurement};

const TIMEOUT: u32 = 10;

/// The url and the timeout.
pub(crate) fn request(measurement: &Measurement, web: &Web) -> Result<(Url, Duration), NoAnswer> {
    Ok((url(&filled(&web.url, measurement, Place::Url)?)?, timeout(web.timeout_seconds, TIMEOUT)))
}

fn filled(text: &str, measurement: &Measurement, place: Place) -> Result<String, NoAnswer> {
    fill(text, &measurement.arguments, place).map_err(|problem| NoAnswer::because(problem.0))
}

pub(crate) async fn measure(asker: &Asker, measurement: &Measurement, web: &Web, target: Target) -> Result<Reading, NoAnswer> {
    let method = match web.method.unwrap_or_default() {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
    };
    let body =
        web.body.as_deref().filter(|_| method != http::Method::GET).map(|body| filled(body, measurement, Place::Plain)).transpose()?;
    let question = Ask {
        method,
        target,
        headers: asker.headers(measurement, &web.headers).await?,
        body,
        ca_bundle: web.ca_bundle.clone(),
        follow_redirects: web.follow_redirects.unwrap_or_default(),
    };
    let bytes = ask(asker, measurement, question).await?;
    let path = web.json_path.clone();
    Ok(Box::new(move || read(&bytes, path.as_deref()).map(Answer::Value)))
}

fn read(bytes: &[u8], path: Option<&str>) -> Result<Value, NoAnswer> {
    let answer = json(bytes)?;
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Ok(Value::String(answer.to_string()));
    };
    let path = JsonPath::parse(path).map_err(|problem| NoAnswer::because(format!("jsonPath: {problem}")))?;
    // Always a string: conditions use asInt(result).
    path.render(&answer).map(Value::String).map_err(|problem| NoAnswer::because(format!("jsonPath: {problem} in the answer")))
}

/// The largest timeout; larger values count as this one.
const MAX_SECONDS: u32 = planner::hookrun::MAX_TIMEOUT_SECONDS;

/// The timeout of a spec, or the default.
pub(crate) fn timeout(seconds: Option<i32>, default: u32) -> Duration {
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    Duration::from_secs(u64::from(seconds.unwrap_or(default).min(MAX_SECONDS)))
}
