//! Numbers of pods: a new pod gets the lowest number that is free. Pods that are being deleted keep theirs until they
//! are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{INDEX_ANNOTATION, INDEX_ON_ANNOTATION, INDEX_RANGE_ANNOTATION};
use api::tkex::PodIndex;
use serde::Deserialize;

use crate::facts::pod::PodFacts;
use crate::hold::Hold;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Legacy {
    pod_start_index: i32,
    pod_end_index: i32,
}

/// Which numbers pods get, if any. Without `spec.podIndex` the annotations of the original operator count.
pub fn range(spec: Option<&PodIndex>, annotations: Option<&BTreeMap<String, String>>) -> Result<Option<PodIndex>, Hold> {
    if let Some(spec) = spec {
        return checked(spec.clone(), "spec.podIndex").map(Some);
    }
    let text = |key: &str| annotations.and_then(|annotations| annotations.get(key)).map(String::as_str);
    if text(INDEX_ON_ANNOTATION) != Some("true") {
        return Ok(None);
    }
    let field = format!("metadata.annotations[{INDEX_RANGE_ANNOTATION}]");
    match text(INDEX_RANGE_ANNOTATION).map(serde_json::from_str::<Legacy>) {
        Some(Ok(legacy)) => checked(PodIndex { start: legacy.pod_start_index, end: legacy.pod_end_index }, &field).map(Some),
        Some(Err(error)) => Err(Hold::Invalid { field, problem: format!("it is no range of numbers ({error}), so no pod is created") }),
        None => Err(Hold::Invalid { field, problem: "it is missing, so no pod is created".to_owned() }),
    }
}

fn checked(range: PodIndex, field: &str) -> Result<PodIndex, Hold> {
    if range.start >= 0 && range.start < range.end {
        return Ok(range);
    }
    let problem = format!("{} to {} is no range of numbers, so no pod is created", range.start, range.end);
    Err(Hold::Invalid { field: field.to_owned(), problem })
}

/// How many numbers there are.
pub fn size(range: &PodIndex) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or_default()
}

/// Numbers that no pod has, lowest first.
pub fn free(range: &PodIndex, pods: &[Arc<PodFacts>]) -> impl Iterator<Item = i32> + use<> {
    let taken: BTreeSet<i32> = pods.iter().filter_map(|pod| pod.annotations.get(INDEX_ANNOTATION)?.parse().ok()).collect();
    (range.start..range.end).filter(move |number| !taken.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(on: &str, range: Option<&str>) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([(INDEX_ON_ANNOTATION.to_owned(), on.to_owned())]);
        all.extend(range.map(|range| (INDEX_RANGE_ANNOTATION.to_owned(), range.to_owned())));
        all
    }

    #[test]
    fn the_annotations_of_the_original_are_understood() {
        let given = annotations("true", Some(r#"{"podStartIndex":1,"podEndIndex":5}"#));
        assert_eq!(range(None, Some(&given)), Ok(Some(PodIndex { start: 1, end: 5 })));
        assert_eq!(
            range(Some(&PodIndex { start: 0, end: 2 }), Some(&given)),
            Ok(Some(PodIndex { start: 0, end: 2 })),
            "the spec counts first"
        );
        for off in ["false", "True", ""] {
            assert_eq!(range(None, Some(&annotations(off, None))), Ok(None), "{off}");
        }
        assert_eq!(range(None, None), Ok(None));
    }

    #[test]
    fn what_is_no_range_names_its_field() {
        for bad in [None, Some("1-5"), Some(r#"{"podStartIndex":5,"podEndIndex":5}"#), Some(r#"{"podStartIndex":-1,"podEndIndex":5}"#)] {
            let Err(Hold::Invalid { field, .. }) = range(None, Some(&annotations("true", bad))) else { panic!("{bad:?}") };
            assert_eq!(field, "metadata.annotations[tkex.bkbcs.tencent.com/gamedeployment-index-range]");
        }
    }
}
