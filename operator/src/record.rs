//! Writes status: important changes at once, others at most once a second per object.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::client::{CallError, Patch, Server};
use crate::leader::Leadership;
use crate::store::Key;

/// Numbers and messages of one object are written at most this often. A change of a condition or a revision is written at once.
const GAP: Duration = Duration::from_secs(1);

/// Fields whose change is written at once.
const URGENT: [&str; 9] = [
    "phase",
    "observedGeneration",
    "updateRevision",
    "currentRevision",
    "collisionCount",
    "currentStepIndex",
    "currentStepHash",
    "pauseConditions",
    "canary",
];

/// Writes status.
#[derive(Debug)]
pub struct Recorder {
    server: Server,
    leadership: Arc<Leadership>,
    last: Mutex<HashMap<Key, Instant>>,
}

/// The result of recording a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing was written: the status is the same.
    Same,
    /// Nothing was written: the object has changed or is gone.
    Stale,
    /// It was written; the resourceVersion of the write.
    Written(u64),
    /// It has to be written at that time.
    Later(Instant),
}

impl Recorder {
    /// A recorder that has written nothing yet.
    #[must_use]
    pub fn new(server: Server, leadership: Arc<Leadership>) -> Self {
        Self { server, leadership, last: Mutex::default() }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Instant>> {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes the difference between two versions of an object's status.
    ///
    /// `version` is the resourceVersion of the observed object: the patch fails if the object was changed or recreated since.
    pub async fn record(&self, key: &Key, path: &str, version: &str, before: &Value, after: &Value) -> Result<Recorded, CallError> {
        let difference = difference(before, after);
        if difference.is_empty() {
            return Ok(Recorded::Same);
        }
        if !self.leadership.may_write() {
            return Ok(Recorded::Later(Instant::now() + GAP));
        }
        let due = self.last().get(key).map(|last| *last + GAP);
        if let Some(due) = due.filter(|due| *due > Instant::now() && !is_urgent(before, after)) {
            return Ok(Recorded::Later(due));
        }
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": difference });
        let written = self.server.patch(&format!("{path}/status"), Patch::Merge, &patch).await;
        match written {
            Ok(written) => {
                self.last().insert(key.clone(), Instant::now());
                Ok(Recorded::Written(written.metadata.version()))
            }
            // The object is gone or has changed: the event of that causes the next pass.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(Recorded::Stale),
            Err(error) => Err(error),
        }
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.last().remove(key);
    }
}

/// A merge patch from one object to another.
fn difference(before: &Value, after: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(value)).map(|(key, value)| {
        let inner = before.get(key).filter(|old| old.is_object() && value.is_object());
        (key.clone(), inner.map_or_else(|| value.clone(), |old| Value::Object(difference(old, value))))
    });
    gone.chain(changed).collect()
}

/// Whether a change of a status is written at once.
pub(crate) fn is_urgent(before: &Value, after: &Value) -> bool {
    let verdicts = |status: &Value| -> Vec<Value> {
        let conditions = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.iter().map(|one| json!([one.get("type"), one.get("status"), one.get("reason")])).collect()
    };
    URGENT.iter().any(|field| before.get(field) != after.get(field)) || verdicts(before) != verdicts(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_written() {
        let before = json!({ "replicas": 1, "readyReplicas": 1, "canary": { "revision": "a" } });
        let after = json!({ "replicas": 1, "readyReplicas": 2 });
        assert_eq!(Value::Object(difference(&before, &after)), json!({ "readyReplicas": 2, "canary": null }));
        assert!(difference(&before, &before).is_empty());
        // Fields that are removed inside an object need a null: a merge patch would keep them.
        let nested = |hook_run: Option<&str>| json!({ "canary": { "revision": "a", "currentStepHookRun": hook_run } });
        let without = json!({ "canary": { "revision": "a" } });
        assert_eq!(Value::Object(difference(&nested(Some("run")), &without)), json!({ "canary": { "currentStepHookRun": null } }));
    }

    #[test]
    fn numbers_can_wait_and_verdicts_cannot() {
        let status = |ready: i32, reason: &str| json!({ "readyReplicas": ready, "conditions": [{ "type": "Progressing", "status": "True", "reason": reason }] });
        assert!(!is_urgent(&status(1, "Scaling"), &status(2, "Scaling")));
        assert!(is_urgent(&status(1, "Scaling"), &status(1, "Complete")));
    }
}
