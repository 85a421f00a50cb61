//! Validates a hook before anything is measured: every expression, path, duration and argument.

use std::collections::BTreeSet;

use api::tkex::{Function, HookArgument, Method, Metric};

use super::expression::Expression;
use super::{arguments, duration};
use crate::jsonpath::JsonPath;

/// What is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A template: arguments may get their values later.
    Template,
    /// A run: every argument has a value.
    Run,
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub text: String,
}

/// Arguments that workloads pass to every hook about a pod.
const GIVEN: [&str; 4] = ["PodName", "PodNamespace", "PodIP", "HostIP"];
/// The same, once per container.
const GIVEN_LISTS: [&str; 2] = ["PodContainer[", "ModifiedContainer["];

/// The longest conditions of one hook, in bytes, taken together.
const MAX_CONDITIONS_BYTES: usize = 16 * 1024;

/// Everything that is wrong.
#[must_use]
pub fn problems(metrics: &[Metric], args: &[HookArgument], of: Of) -> Vec<Finding> {
    let mut found = Findings { all: Vec::new() };
    let mut names = BTreeSet::new();
    for (index, argument) in args.iter().enumerate() {
        if of == Of::Run && argument.value.is_none() {
            found.add(&format!("spec.args[{index}].value"), &format!("args.{} has no value", argument.name));
        }
        if !names.insert(argument.name.as_str()) {
            found.add(&format!("spec.args[{index}].name"), &format!("{} is there twice", argument.name));
        }
    }
    let given = |name: &str| of == Of::Template && (GIVEN.contains(&name) || GIVEN_LISTS.iter().any(|list| name.starts_with(list)));
    let known = |name: &str| names.contains(name) || given(name);
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let conditions: usize = metrics.iter().map(|metric| length(&metric.success_condition) + length(&metric.failure_condition)).sum();
    if conditions > MAX_CONDITIONS_BYTES {
        found.add("spec.metrics", &format!("conditions have {conditions} bytes in all, at most {MAX_CONDITIONS_BYTES} are allowed"));
        return found.all;
    }
    let mut metric_names = BTreeSet::new();
    for (index, metric) in metrics.iter().enumerate() {
        let at = |field: &str| format!("spec.metrics[{index}].{field}");
        if !metric_names.insert(&metric.name) {
            found.add(&at("name"), &format!("{} is there twice", metric.name));
        }
        for (field, text) in [("interval", &metric.interval), ("initialDelay", &metric.initial_delay)] {
            found.check(&at(field), text.as_ref(), |text| duration::parse(text).map(drop).map_err(|problem| problem.0));
        }
        for (field, text) in [("successCondition", &metric.success_condition), ("failureCondition", &metric.failure_condition)] {
            found.check(&at(field), text.as_ref(), |text| Expression::check(text).map_err(|problem| problem.0));
        }
        found.provider(metric, &|field: &str| at(&format!("provider.{field}")), &known);
    }
    if metrics.is_empty() {
        found.add("spec.metrics", "nothing is measured");
    }
    found.all
}

/// Timeouts that are longer than the maximum, and count as that.
#[must_use]
pub fn clamped(metrics: &[Metric]) -> Vec<String> {
    let mut all = Vec::new();
    for (index, Metric { provider, .. }) in metrics.iter().enumerate() {
        let timeouts = [
            ("web", provider.web.as_ref().and_then(|web| web.timeout_seconds)),
            ("prometheus", provider.prometheus.as_ref().and_then(|prometheus| prometheus.timeout_seconds)),
            ("exec", provider.exec.as_ref().and_then(|exec| exec.timeout_seconds)),
        ];
        let is_long = |seconds: &i32| u32::try_from(*seconds).is_ok_and(|seconds| seconds > super::MAX_TIMEOUT_SECONDS);
        for (name, _) in timeouts.iter().filter(|(_, seconds)| seconds.as_ref().is_some_and(is_long)) {
            all.push(format!(
                "spec.metrics[{index}].provider.{name}.timeoutSeconds counts as {}, the most there is",
                super::MAX_TIMEOUT_SECONDS
            ));
        }
    }
    all
}

struct Findings {
    all: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, field: &str, text: &str) {
        self.all.push(Finding { field: field.to_owned(), text: text.to_owned() });
    }

    /// Checks a text unless it is absent or empty.
    fn check(&mut self, field: &str, text: Option<&String>, check: impl FnOnce(&str) -> Result<(), String>) {
        if let Some(Err(problem)) = text.filter(|text| !text.is_empty()).map(|text| check(text)) {
            self.add(field, &problem);
        }
    }

    fn path(&mut self, field: &str, text: Option<&String>) {
        self.check(field, text, |text| JsonPath::parse(text).map(drop).map_err(|problem| problem.0));
    }

    fn template(&mut self, field: &str, text: &str, known: &dyn Fn(&str) -> bool) {
        match arguments::needed(text) {
            Err(problem) => self.add(field, &problem.0),
            Ok(names) => {
                for name in names.into_iter().filter(|name| !known(name)) {
                    self.add(field, &format!("args.{name} is not among spec.args"));
                }
            }
        }
    }

    fn provider(&mut self, metric: &Metric, at: &dyn Fn(&str) -> String, known: &dyn Fn(&str) -> bool) {
        let provider = &metric.provider;
        let chosen = [provider.web.is_some(), provider.prometheus.is_some(), provider.kubernetes.is_some(), provider.exec.is_some()];
        if chosen.iter().filter(|chosen| **chosen).count() != 1 {
            self.add(&at("").replace("provider.", "provider"), "exactly one of web, prometheus, kubernetes and exec");
        }
        let mut headers = Vec::new();
        if let Some(web) = &provider.web {
            self.template(&at("web.url"), &web.url, known);
            if web.body.is_some() && web.method.unwrap_or_default() == Method::Get {
                self.add(&at("web.body"), "is for method POST or PUT");
            }
            self.template(&at("web.body"), web.body.as_deref().unwrap_or_default(), known);
            self.path(&at("web.jsonPath"), web.json_path.as_ref());
            headers.push(("web", &web.headers));
        }
        if let Some(prometheus) = &provider.prometheus {
            self.template(&at("prometheus.query"), &prometheus.query, known);
            headers.push(("prometheus", &prometheus.headers));
        }
        for (place, headers) in headers {
            for (index, header) in headers.iter().enumerate() {
                self.template(&at(&format!("{place}.headers[{index}].value")), header.value.as_deref().unwrap_or_default(), known);
            }
        }
        for (name, chosen) in [("kubernetes", provider.kubernetes.is_some()), ("exec", provider.exec.is_some())] {
            if chosen && !known("PodName") {
                self.add(&at(name), "needs args.PodName, which is not among spec.args");
            }
        }
        if let Some(kubernetes) = &provider.kubernetes {
            self.path(&at("kubernetes.jsonPath"), kubernetes.json_path.as_ref());
            for (index, field) in kubernetes.fields.iter().enumerate() {
                self.template(&at(&format!("kubernetes.fields[{index}].value")), &field.value, known);
            }
            let patches = kubernetes.function == Some(Function::Patch);
            if patches && kubernetes.json_path.is_some() {
                self.add(&at("kubernetes.jsonPath"), "is for function get");
            }
            if (patches || kubernetes.json_path.is_none()) && (metric.success_condition.is_some() || metric.failure_condition.is_some()) {
                self.add(&at("kubernetes"), "has no value for the conditions: they need function get with a jsonPath");
            }
            if kubernetes.fields.is_empty() && (patches || kubernetes.json_path.is_none()) {
                self.add(&at("kubernetes.fields"), if patches { "nothing to set" } else { "neither fields nor jsonPath" });
            }
        }
        if let Some(exec) = &provider.exec {
            for (index, word) in exec.command.iter().enumerate() {
                self.template(&at(&format!("exec.command[{index}]")), word, known);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(metric: serde_json::Value, args: serde_json::Value, of: Of) -> Vec<String> {
        let mut metric = metric;
        metric["name"] = json!("a");
        let metrics: Vec<Metric> = serde_json::from_value(json!([metric])).unwrap();
        let args: Vec<HookArgument> = serde_json::from_value(args).unwrap();
        problems(&metrics, &args, of).into_iter().map(|finding| format!("{}: {}", finding.field, finding.text)).collect()
    }

    fn web(url: &str) -> serde_json::Value {
        json!({ "web": { "url": url, "jsonPath": "{$.age}" } })
    }

    #[test]
    fn every_place_is_named() {
        for (metric, expected) in [
            (json!({ "provider": web("http://a/"), "interval": "soon" }), "spec.metrics[0].interval: \"soon\" is no duration"),
            (
                json!({ "provider": web("http://a/"), "successCondition": "age < 3" }),
                "spec.metrics[0].successCondition: at character 1: age",
            ),
            (json!({ "provider": web("http://a/{{ args.x }}") }), "spec.metrics[0].provider.web.url: args.x is not among spec.args"),
            (json!({ "provider": { "web": { "url": "http://a", "jsonPath": "$.age" } } }), "spec.metrics[0].provider.web.jsonPath: no {…}"),
            (json!({ "provider": {} }), "spec.metrics[0].provider: exactly one"),
            (json!({ "provider": { "kubernetes": {} } }), "spec.metrics[0].provider.kubernetes.fields: neither"),
            (
                json!({ "provider": { "exec": { "command": ["{{ args.y"] } } }),
                "spec.metrics[0].provider.exec.command[0]: a {{ is not closed",
            ),
        ] {
            let found = found(metric, json!([]), Of::Template);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn conditions_are_bounded_in_sum() {
        let metric = |number: usize| {
            let condition = format!("result == '{}'", "x".repeat(1000));
            json!({ "name": number.to_string(), "provider": web("http://a/"), "successCondition": condition })
        };
        let of = |count: usize| {
            let metrics: Vec<Metric> = serde_json::from_value((0..count).map(metric).collect()).unwrap();
            problems(&metrics, &[], Of::Template)
        };
        assert!(of(16).is_empty());
        assert!(of(17).len() == 1 && of(17)[0].text.contains("in all, at most 16384 are allowed"), "{:?}", of(17));
    }

    #[test]
    fn a_provider_that_needs_a_pod_needs_its_name() {
        let metric = || json!({ "provider": { "exec": { "command": ["ls"] } } });
        assert!(found(metric(), json!([]), Of::Template).is_empty(), "workloads give it");
        assert_eq!(
            found(metric(), json!([]), Of::Run),
            ["spec.metrics[0].provider.exec: needs args.PodName, which is not among spec.args"]
        );
    }

    #[test]
    fn a_template_may_leave_values_open_and_a_run_may_not() {
        let metric = || json!({ "provider": web("http://{{ args.PodIP }}/{{ args.x }}") });
        assert!(found(metric(), json!([{ "name": "x" }]), Of::Template).is_empty());
        let run = found(metric(), json!([{ "name": "x" }]), Of::Run);
        assert_eq!(run.len(), 2, "{run:?}");
        assert!(found(metric(), json!([{ "name": "x", "value": "1" }, { "name": "PodIP", "value": "10.0.0.1" }]), Of::Run).is_empty());
    }
}
