//! What to do next for one HookTemplate: report whether it is valid.

use api::names::{condition as types, reason};
use api::tkex::{HookTemplate, HookTemplateStatus};
use jiff::Timestamp;

use crate::condition::{self, Verdict};
use crate::hookrun::check::{self, Of};
use crate::plan::{Note, Plan};

/// What to do next: only the status is written. `too_large` is why its spec is not known, if it is not.
#[must_use]
pub fn decide(template: &HookTemplate, too_large: Option<&str>, now: Timestamp) -> Plan<HookTemplateStatus> {
    let mut status = template.status.clone().unwrap_or_default();
    let generation = template.metadata.generation;
    let problems = check::problems(&template.spec.metrics, &template.spec.args, Of::Template);
    let verdict = if let Some(why) = too_large {
        Verdict::no(reason::TOO_LARGE, why)
    } else if problems.is_empty() {
        let can_be_read = "every expression, path, duration and argument can be read".to_owned();
        let said: Vec<String> = std::iter::once(can_be_read).chain(check::clamped(&template.spec.metrics)).collect();
        Verdict::yes(reason::ACCEPTED, said.join("; "))
    } else {
        let said: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.field, problem.text)).collect();
        Verdict::no(reason::INVALID_SPEC, said.join("; "))
    };
    let note = Note {
        warning: true,
        reason: if too_large.is_some() { reason::TOO_LARGE } else { reason::INVALID_SPEC },
        message: verdict.message.clone(),
    };
    let is_news = !verdict.holds && status.observed_generation != generation;
    condition::set(&mut status.conditions, types::ACCEPTED, verdict, generation, now);
    status.observed_generation = generation;
    Plan { notes: is_news.then_some(note).into_iter().collect(), ..Plan::only(status) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn accepted(timeout: i32, too_large: Option<&str>) -> (String, String) {
        let metric = json!({ "name": "a", "provider": { "web": { "url": "http://a/", "timeoutSeconds": timeout } } });
        let template =
            json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {}, "spec": { "metrics": [metric] } });
        let template: HookTemplate = serde_json::from_value(template).unwrap();
        let status = decide(&template, too_large, Timestamp::UNIX_EPOCH).status;
        let condition = status.conditions.into_iter().next().unwrap();
        (format!("{} {}", condition.status, condition.reason), condition.message)
    }

    #[test]
    fn a_timeout_that_is_too_long_is_told() {
        assert_eq!(
            accepted(60, None),
            ("True Accepted".to_owned(), "every expression, path, duration and argument can be read".to_owned())
        );
        let (verdict, message) = accepted(61, None);
        assert_eq!(verdict, "True Accepted");
        assert!(message.ends_with("; spec.metrics[0].provider.web.timeoutSeconds counts as 60, the most there is"), "{message}");
        assert_eq!(accepted(1, Some("spec has 9 bytes")), ("False TooLarge".to_owned(), "spec has 9 bytes".to_owned()));
    }
}
