//! Conditions, which change only when what they report changes.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the condition holds.
    pub holds: bool,
    /// One word.
    pub reason: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
}

impl Verdict {
    /// A condition that holds.
    #[must_use]
    pub fn yes(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { holds: true, reason: reason.into(), message: message.into() }
    }

    /// A condition that does not hold.
    #[must_use]
    pub fn no(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { holds: false, reason: reason.into(), message: message.into() }
    }
}

/// The longest message that the API server accepts in a condition.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Sets one condition. Its transition time moves only if its status does.
pub fn set(conditions: &mut Vec<Condition>, kind: &str, verdict: Verdict, generation: Option<i64>, now: Timestamp) {
    let status = if verdict.holds { "True" } else { "False" };
    let before = conditions.iter().position(|one| one.type_ == kind).map(|index| conditions.remove(index));
    let since = before.filter(|before| before.status == status).map_or(Time(now), |before| before.last_transition_time);
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.into_owned(),
        message: shortened(verdict.message),
        observed_generation: generation,
        last_transition_time: since,
    });
    conditions.sort_by(|left, right| left.type_.cmp(&right.type_));
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES - 4).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
        message.truncate(end);
        message.push_str(" …");
    }
    message
}
