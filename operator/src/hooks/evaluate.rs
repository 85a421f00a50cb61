//! Parses and evaluates answers. Both the data and the conditions are untrusted, so this runs on blocking threads, few at once,
//! round-robin between namespaces.

use std::sync::Arc;
use std::time::Duration;

use api::template::values;
use api::tkex::{Metric, Phase};
use planner::hookrun::{Outcome, judge};
use serde_json::Value;

use super::http::NoAnswer;
use super::{Answer, Measurement};
use crate::fair::Places;

/// Answers that are parsed at once. Each needs many times its own size meanwhile.
const AT_ONCE: usize = 2;
/// The most values of an answer.
const MOST_VALUES: usize = 50_000;
/// Timeout of one evaluation. Within the limits on answers and conditions it takes less.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Parses an answer.
pub(crate) type Reading = Box<dyn FnOnce() -> Result<Answer, NoAnswer> + Send>;

/// Parses and evaluates answers.
#[derive(Debug)]
pub(crate) struct Evaluation {
    places: Arc<Places>,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { places: Places::new(AT_ONCE) }
    }
}

impl Evaluation {
    /// Parses an answer and evaluates the conditions of its metric.
    pub(crate) async fn of(&self, measurement: Measurement, reading: Reading) -> Outcome {
        let wrong = |message: &str| Outcome { phase: Phase::Error, value: None, message: Some(message.to_owned()) };
        let place = self.places.take(&measurement.namespace).await;
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work ends, even after the timeout.
            let _place = place;
            meaning(&measurement.metric, reading())
        });
        match tokio::time::timeout(TIMEOUT, work).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => wrong("the answer could not be judged"),
            Err(_) => wrong("judging the answer took too long"),
        }
    }
}

fn meaning(metric: &Metric, answer: Result<Answer, NoAnswer>) -> Outcome {
    match answer {
        Ok(Answer::Value(value)) => judge::judge(metric, &value),
        Ok(Answer::Success) => Outcome { phase: Phase::Successful, value: None, message: None },
        Ok(Answer::Refused { value, message }) => Outcome { phase: Phase::Failed, value, message: Some(message) },
        Ok(Answer::Nothing(text)) => {
            Outcome { phase: Phase::Inconclusive, message: Some(format!("the value is {text}")), value: Some(text) }
        }
        Err(error) => Outcome { phase: Phase::Error, value: None, message: Some(error.message) },
    }
}

/// The answer, unless it has so many values that parsing it would need too much memory.
pub(crate) fn few(bytes: &[u8]) -> Result<&[u8], NoAnswer> {
    match values(bytes) {
        count if count > MOST_VALUES => Err(NoAnswer::because(format!("the answer has {count} values, at most {MOST_VALUES} are read"))),
        _ => Ok(bytes),
    }
}

/// Parses an answer as JSON.
pub(crate) fn json(bytes: &[u8]) -> Result<Value, NoAnswer> {
    let read = |bytes| serde_json::from_slice(bytes).map_err(|error| NoAnswer::because(format!("the answer is no JSON: {error}")));
    few(bytes).and_then(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_many_values_is_not_read() {
        assert_eq!(json(br#"{"age":32}"#).unwrap()["age"], 32);
        let junk = format!("[{}0]", r#"{"a":0},"#.repeat(MOST_VALUES));
        assert!(json(junk.as_bytes()).unwrap_err().message.contains("at most 50000 are read"));
        assert!(json(b"hello").unwrap_err().message.contains("the answer is no JSON"));
    }

    #[tokio::test]
    async fn a_program_that_panics_is_an_error_and_gives_its_place_back() {
        let evaluation = Evaluation::default();
        for _ in 0..AT_ONCE + 1 {
            let measurement = crate::hooks::testing::measurement("http://10.0.0.1/", None);
            let outcome = evaluation.of(measurement, Box::new(|| panic!("no"))).await;
            assert_eq!((outcome.phase, outcome.message.as_deref()), (Phase::Error, Some("the answer could not be judged")));
        }
    }
}
