//! The `prometheus` provider: an instant query.

use std::time::Duration;

use api::tkex::Prometheus;
use planner::hookrun::arguments::{Place, fill};
use serde::Deserialize;
use serde_json::{Number, Value};
use url::Url;

use super::evaluate::{Reading, few};
use super::http::{Ask, NoAnswer, ask, url};
use super::target::Target;
use super::web::timeout;
use super::{Asker, Measurement};

const TIMEOUT: u32 = 30;

#[derive(Deserialize)]
struct Reply {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Value,
}

/// The numbers of the result, or NaN.
enum Answer {
    Numbers(Value),
    NotANumber(String),
}

/// The url and the timeout.
pub(crate) fn request(prometheus: &Prometheus) -> Result<(Url, Duration), NoAnswer> {
    Ok((url(&prometheus.address)?, timeout(prometheus.timeout_seconds, TIMEOUT)))
}

pub(crate) async fn measure(
    asker: &Asker,
    measurement: &Measurement,
    prometheus: &Prometheus,
    mut target: Target,
) -> Result<Reading, NoAnswer> {
    let query = fill(&prometheus.query, &measurement.arguments, Place::Query).map_err(|problem| NoAnswer::because(problem.0))?;
    let base = target.url.path().trim_end_matches('/').to_owned();
    target.url.set_path(&format!("{base}/api/v1/query"));
    target.url.query_pairs_mut().append_pair("query", &query);
    let question = Ask {
        method: http::Method::GET,
        target,
        headers: asker.headers(measurement, &prometheus.headers).await?,
        body: None,
        ca_bundle: prometheus.ca_bundle.clone(),
        follow_redirects: false,
    };
    let bytes = ask(asker, measurement, question).await?;
    Ok(Box::new(move || {
        read(&bytes).map(|answer| match answer {
            Answer::Numbers(value) => super::Answer::Value(value),
            Answer::NotANumber(text) => super::Answer::Nothing(text),
        })
    }))
}

fn read(bytes: &[u8]) -> Result<Answer, NoAnswer> {
    // The parser's own error would quote the answer.
    let no_reply = |_| NoAnswer::because("the answer is not Prometheus': it has no data.result");
    let reply = few(bytes).and_then(|bytes| serde_json::from_slice::<Reply>(bytes).map_err(no_reply))?;
    let texts: Vec<&Value> = match reply.data.result_type.as_str() {
        "scalar" => reply.data.result.get(1).into_iter().collect(),
        "vector" => reply.data.result.as_array().into_iter().flatten().filter_map(|sample| sample.pointer("/value/1")).collect(),
        "matrix" => return Err(NoAnswer::because("the query yields a matrix; a scalar or a vector is needed")),
        _ => return Err(NoAnswer::because("the query yields neither a scalar nor a vector")),
    };
    let mut numbers = Vec::new();
    for text in texts {
        let number: f64 =
            text.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| NoAnswer::because("a sample has no number for a value"))?;
        if number.is_nan() {
            return Ok(Answer::NotANumber("NaN".to_owned()));
        }
        // JSON has no infinity: the largest number compares like it.
        let number = number.clamp(f64::MIN, f64::MAX);
        numbers.push(Number::from_f64(number).map_or(Value::Null, Value::Number));
    }
    let value = match (reply.data.result_type.as_str(), numbers.as_slice()) {
        ("scalar", [number]) => number.clone(),
        ("scalar", _) => return Err(NoAnswer::because("the answer holds no value")),
        _ => Value::Array(numbers),
    };
    Ok(Answer::Numbers(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(kind: &str, result: &Value) -> Result<Value, String> {
        let reply = json!({ "status": "success", "data": { "resultType": kind, "result": result } });
        match read(reply.to_string().as_bytes()) {
            Ok(Answer::Numbers(value)) => Ok(value),
            Ok(Answer::NotANumber(text)) => Err(text),
            Err(error) => Err(error.message),
        }
    }

    #[test]
    fn scalars_are_numbers_and_vectors_are_lists() {
        assert_eq!(value("scalar", &json!([1, "0.5"])), Ok(json!(0.5)));
        assert_eq!(value("vector", &json!([{ "metric": {}, "value": [1, "2"] }, { "value": [1, "3"] }])), Ok(json!([2.0, 3.0])));
        assert_eq!(value("vector", &json!([])), Ok(json!([])));
        assert_eq!(value("vector", &json!([{ "value": [1, "NaN"] }])), Err("NaN".to_owned()));
        assert_eq!(value("scalar", &json!([1, "+Inf"])), Ok(json!(f64::MAX)));
        assert!(value("matrix", &json!([])).unwrap_err().contains("yields a matrix"));
        assert!(value("scalar", &json!([1, "x"])).unwrap_err().contains("no number"));
    }

    #[test]
    fn what_is_not_prometheus_is_not_quoted() {
        let said = |reply: Value| read(reply.to_string().as_bytes()).map(|_| ()).unwrap_err().message;
        for reply in [
            json!({ "data": "password" }),
            json!({ "data": { "resultType": "password", "result": [] } }),
            json!({ "data": { "resultType": "scalar", "result": [1, "password"] } }),
            json!("password"),
        ] {
            let said = said(reply);
            assert!(!said.contains("password") && !said.is_empty(), "{said}");
        }
    }
}
