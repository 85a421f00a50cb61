//! Whether a measured value is a success.

use api::tkex::{Metric, Phase};
use serde_json::Value;

use super::Outcome;
use super::expression::Expression;

/// Evaluates the metric's conditions for a value: the failure condition first.
#[must_use]
pub fn judge(metric: &Metric, value: &Value) -> Outcome {
    let text = printed(value);
    let ask = |name: &str, condition: Option<&String>| -> Result<Option<bool>, String> {
        let Some(condition) = condition.filter(|condition| !condition.is_empty()) else { return Ok(None) };
        let answer = Expression::parse(condition).and_then(|expression| expression.holds(value));
        answer.map(Some).map_err(|problem| format!("{name}: {problem}"))
    };
    let answers = ask("failureCondition", metric.failure_condition.as_ref())
        .and_then(|failure| Ok((failure, ask("successCondition", metric.success_condition.as_ref())?)));
    let (phase, message) = match answers {
        Err(problem) => (Phase::Error, Some(problem)),
        Ok((Some(true), _)) => (Phase::Failed, None),
        Ok((None | Some(false), Some(true)) | (None, None) | (Some(false), None)) => (Phase::Successful, None),
        Ok((None, Some(false))) => (Phase::Failed, None),
        Ok((Some(false), Some(false))) => (Phase::Inconclusive, Some("neither successCondition nor failureCondition holds".to_owned())),
    };
    Outcome { phase, value: Some(text), message }
}

/// A value as a status shows it.
#[must_use]
pub fn printed(value: &Value) -> String {
    match value {
        // This number represents infinity, which JSON does not have.
        Value::Number(number) if number.as_f64() == Some(f64::MAX) => "+Inf".to_owned(),
        Value::Number(number) if number.as_f64() == Some(f64::MIN) => "-Inf".to_owned(),
        Value::String(text) => super::shortened(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => super::shortened(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(success: Option<&str>, failure: Option<&str>, value: &Value) -> Outcome {
        let metric =
            Metric { success_condition: success.map(str::to_owned), failure_condition: failure.map(str::to_owned), ..Metric::default() };
        judge(&metric, value)
    }

    #[test]
    fn conditions_decide_and_the_failure_condition_wins() {
        let value = json!("32");
        for (success, failure, phase) in [
            (None, None, Phase::Successful),
            (Some("asInt(result) > 30"), None, Phase::Successful),
            (Some("asInt(result) < 30"), None, Phase::Failed),
            (None, Some("asInt(result) > 30"), Phase::Failed),
            (None, Some("asInt(result) < 30"), Phase::Successful),
            (Some("asInt(result) > 30"), Some("asInt(result) > 31"), Phase::Failed),
            (Some("asInt(result) > 30"), Some("asInt(result) > 32"), Phase::Successful),
            (Some("asInt(result) > 40"), Some("asInt(result) < 20"), Phase::Inconclusive),
        ] {
            let outcome = judged(success, failure, &value);
            assert_eq!((outcome.phase, outcome.value.as_deref()), (phase, Some("32")), "{success:?} {failure:?}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_judged_is_an_error_with_a_message() {
        let outcome = judged(Some("result > 10"), None, &json!("32"));
        assert_eq!(outcome.phase, Phase::Error);
        assert!(outcome.message.is_some_and(|message| message.starts_with("successCondition: ")), "H10: no empty message");
    }

    #[test]
    fn large_whole_numbers_stay_whole() {
        assert_eq!(judged(Some("asInt(result) == 1000000"), None, &json!("1000000")).phase, Phase::Successful);
        assert_eq!(judged(Some("result == 1234567"), None, &json!(1_234_567)).value.as_deref(), Some("1234567"));
    }
}
