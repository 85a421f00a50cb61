//! What a hook about a pod is asked: the HookRun, its arguments, its labels and its name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{
    INSTANCE_ID_LABEL, RUN_ATTEMPT_LABEL, RUN_INSTANCE_LABEL, RUN_POD_UID_LABEL, RUN_REVISION_LABEL, RUN_TARGET_LABEL, RUN_TEMPLATE_LABEL,
    RUN_TYPE_LABEL,
};
use api::tkex::{HookArgument, HookRunSpec, HookTemplate};

use super::place::{Hook, Intent};
use crate::facts::pod::PodFacts;
use crate::facts::text::Text;
use crate::hash::fnv_1a_64;
use crate::hookrun;

/// The most arguments that a HookRun can have.
const MAX_ARGUMENTS: usize = 64;
/// The longest value of a label.
const MAX_LABEL_LENGTH: usize = 63;
/// The longest name of a run, leaving room for a number.
const MAX_NAME_LENGTH: usize = 240;

/// What a hook is asked about a pod. `changed` are the containers that change.
pub(super) fn question(templates: &[Arc<HookTemplate>], hook: &Hook, pod: &PodFacts, changed: &[String]) -> Result<HookRunSpec, String> {
    let name = &hook.step.template_name;
    let template = templates.iter().find(|template| template.metadata.name.as_ref() == Some(name));
    let template = template.ok_or_else(|| format!("HookTemplate {name} does not exist; create it, and it is asked"))?;
    let given = given(pod, changed);
    let spec = hookrun::question(template, &hook.step.args, &given);
    let spec = spec.map_err(|problem| format!("HookTemplate {name}: {problem}"))?;
    if spec.args.len() > MAX_ARGUMENTS {
        let own = spec.args.len() - given.len();
        return Err(format!(
            "HookTemplate {name}: with those that every hook about a pod gets, its {own} arguments are more than {MAX_ARGUMENTS}"
        ));
    }
    Ok(spec)
}

fn instance(pod: &PodFacts) -> &str {
    pod.labels.get(INSTANCE_ID_LABEL).map_or(pod.name.as_str(), Text::as_str)
}

/// The labels of a run.
pub(super) fn labels(pod: &PodFacts, hook: &Hook, intent: Intent, attempt: u32) -> BTreeMap<String, String> {
    let all = [
        (RUN_TYPE_LABEL, Some(hook.place.label().to_owned())),
        (RUN_TEMPLATE_LABEL, Some(text(&hook.step.template_name).into_owned())),
        (RUN_REVISION_LABEL, pod.revision().map(str::to_owned)),
        (RUN_INSTANCE_LABEL, Some(text(instance(pod)).into_owned())),
        (RUN_POD_UID_LABEL, Some(pod.uid.clone())),
        (RUN_ATTEMPT_LABEL, Some(attempt.to_string())),
        (RUN_TARGET_LABEL, intent.target().map(str::to_owned)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// A text that fits into a label: itself, or a short one that stands for it.
pub(super) fn text(whole: &str) -> Cow<'_, str> {
    if whole.len() <= MAX_LABEL_LENGTH { Cow::Borrowed(whole) } else { Cow::Owned(short(whole)) }
}

fn short(whole: &str) -> String {
    format!("{:016x}", fnv_1a_64(whole.bytes()))
}

/// The name that the first run of this question should have.
pub(super) fn base(pod: &PodFacts, hook: &Hook) -> String {
    let revision = pod.revision().unwrap_or_default();
    run_name(hook.place.prefix(), format!("{}-{revision}-{}-{}", hook.place.prefix(), instance(pod), hook.step.template_name))
}

/// The name that a run should have, or, if no object can have it, a short one that stands for it.
pub(crate) fn run_name(prefix: &str, whole: String) -> String {
    // Labels of pods that others made may be what no name can be.
    let is_fit = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '.';
    if whole.len() <= MAX_NAME_LENGTH
        && whole.chars().all(is_fit)
        && !whole.contains("..")
        && !whole.contains(".-")
        && !whole.contains("-.")
    {
        return whole;
    }
    format!("{prefix}-{}", short(&whole))
}

/// Arguments that every hook about a pod gets.
fn given(pod: &PodFacts, changed: &[String]) -> Vec<HookArgument> {
    let argument = |name: String, value: &str| HookArgument { name, value: Some(value.to_owned()) };
    let plain = [("PodName", &*pod.name), ("PodNamespace", &pod.namespace), ("PodIP", &pod.ip), ("HostIP", &pod.host_ip)];
    let containers =
        pod.containers.iter().enumerate().map(|(place, container)| argument(format!("PodContainer[{place}]"), &container.name));
    let changed = changed.iter().enumerate().map(|(place, name)| argument(format!("ModifiedContainer[{place}]"), name));
    plain.map(|(name, value)| argument(name.to_owned(), value)).into_iter().chain(containers).chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_name_of_the_original_where_an_object_can_have_it() {
        let fits = "test-gamedeployment-77b8d5c4b4-4-test";
        assert_eq!(run_name("canary", fits.to_owned()), fits);
        let long = format!("{}-2-{}", "g".repeat(200), "h".repeat(200));
        let name = run_name("canary", long.clone());
        assert!(name.starts_with("canary-") && name.len() <= MAX_LABEL_LENGTH, "{name}");
        assert_eq!(name, run_name("canary", long.clone()), "the same run every time");
        assert_ne!(name, run_name("canary", format!("{long}x")));
        assert!(run_name("predelete", "Some.-thing".to_owned()).starts_with("predelete-"));
    }
}
