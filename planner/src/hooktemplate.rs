//! What to do next for one HookTemplate: say whether it can be followed.

use api::names::{condition as types, reason};
use api::tkex::{HookTemplate, HookTemplateStatus};
use jiff::Timestamp;

use crate::condition::{self, Verdict};
use crate::hookrun::check::{self, Of};
use crate::plan::{Note, Plan};

/// What to do next. There is nothing to do but to say so. `too_large` is why what it asks is not known.
#[must_use]
pub fn decide(template: &HookTemplate, too_large: Option<&str>, now: Timestamp) -> Plan<HookTemplateStatus> {
    let mut status = template.status.clone().unwrap_or_default();
    let generation = template.metadata.generation;
    let problems = check::problems(&template.spec.metrics, &template.spec.args, Of::Template);
    let verdict = if let Some(why) = too_large {
        Verdict::no(reason::TOO_LARGE, why)
    } else if problems.is_empty() {
        Verdict::yes(reason::ACCEPTED, "every expression, path, duration and argument can be read")
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
