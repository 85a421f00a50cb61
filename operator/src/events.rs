//! Kubernetes events: the first ten with the same object and reason in a minute are written one by one, further ones are folded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use planner::workload::manifest::Owner;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::Server;
use crate::fair::Turns;
use crate::leader::Leadership;

/// How many events with the same object and reason are written one by one within a window.
const SINGLE: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// How often folded events are written.
const FLUSH: Duration = Duration::from_secs(10);
/// How many events may wait to be written, in all and of one namespace. Further ones are dropped.
const WAITING: usize = 2000;
const WAITING_OF_ONE: usize = 500;
/// The most pairs of object and reason that are counted; events of further ones are dropped.
const MOST_WINDOWS: usize = 20_000;
/// The longest message, in characters: the API server accepts at most 1 kB.
const MAX_MESSAGE_CHARACTERS: usize = 1000;

/// An event to write.
#[derive(Debug, Clone)]
pub struct Note {
    /// The object it is about.
    pub about: Owner,
    /// The reporting controller.
    pub reporter: &'static str,
    /// Whether its type is Warning.
    pub warning: bool,
    /// Its reason, one word in CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Queues events to be written, without making the caller wait.
#[derive(Debug, Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

/// Events that wait: namespaces take turns, so that many events of one do not delay the others.
#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<(usize, Turns<Note>)>,
    changed: Notify,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, (usize, Turns<Note>)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, note: Note) {
        let mut waiting = self.waiting();
        let (count, turns) = &mut *waiting;
        if *count < WAITING && turns.len_of(&note.about.namespace) < WAITING_OF_ONE {
            *count += 1;
            let namespace = note.about.namespace.clone();
            turns.push(&namespace, note);
            self.changed.notify_one();
        }
    }

    async fn next(&self) -> Note {
        loop {
            let changed = self.changed.notified();
            {
                let mut waiting = self.waiting();
                if let Some(note) = waiting.1.pop() {
                    waiting.0 -= 1;
                    return note;
                }
            }
            changed.await;
        }
    }
}

#[derive(Debug)]
struct Window {
    since: Instant,
    written: u32,
    folded: u32,
    last: Note,
}

impl Events {
    /// The queue, and the task that writes the events, which never ends.
    pub fn start(server: Server, leadership: Arc<Leadership>) -> (Self, impl Future<Output = ()>) {
        let shared = Arc::new(Shared::default());
        (Self { shared: Arc::clone(&shared) }, write(server, leadership, shared))
    }

    /// Queues an event, unless too many wait.
    pub fn tell(&self, mut note: Note) {
        if note.message.len() > MAX_MESSAGE_CHARACTERS {
            note.message = note.message.chars().take(MAX_MESSAGE_CHARACTERS).collect();
        }
        self.shared.push(note);
    }
}

async fn write(server: Server, leadership: Arc<Leadership>, notes: Arc<Shared>) {
    let mut windows: HashMap<(String, String), Window> = HashMap::new();
    let mut flush = tokio::time::interval(FLUSH);
    loop {
        let due: Vec<Note> = tokio::select! {
            note = notes.next() => admit(&mut windows, note).into_iter().collect(),
            _ = flush.tick() => folded(&mut windows),
        };
        for note in due {
            if leadership.may_write() {
                publish(&server, &note).await;
            }
        }
    }
}

/// The event, if it is to be written by itself.
fn admit(windows: &mut HashMap<(String, String), Window>, note: Note) -> Option<Note> {
    if windows.len() >= MOST_WINDOWS && !windows.contains_key(&(note.about.uid.clone(), note.reason.clone())) {
        return None;
    }
    let window = windows.entry((note.about.uid.clone(), note.reason.clone())).or_insert_with(|| Window {
        since: Instant::now(),
        written: 0,
        folded: 0,
        last: note.clone(),
    });
    if window.since.elapsed() >= WINDOW {
        window.since = Instant::now();
        window.written = 0;
    }
    window.last = note.clone();
    if window.written < SINGLE {
        window.written += 1;
        return Some(note);
    }
    window.folded += 1;
    None
}

/// One event for each series that was folded. Removes windows that have passed.
fn folded(windows: &mut HashMap<(String, String), Window>) -> Vec<Note> {
    let mut due = Vec::new();
    for window in windows.values_mut().filter(|window| window.folded > 0) {
        let mut note = window.last.clone();
        if window.folded > 1 {
            note.message = format!("{} (and {} more like it)", note.message, window.folded - 1);
        }
        window.folded = 0;
        due.push(note);
    }
    windows.retain(|_, window| window.since.elapsed() < WINDOW);
    due
}

async fn publish(server: &Server, note: &Note) {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", note.about.namespace);
    if let Err(error) = server.create(&path, &manifest(note, Timestamp::now())).await {
        tracing::debug!(%error, reason = note.reason, "an event could not be written");
    }
}

fn manifest(note: &Note, now: Timestamp) -> Value {
    let about = &note.about;
    let name = format!("{}.{:x}{:04x}", about.name, now.as_nanosecond(), rand::random::<u16>());
    let text: String = note.message.chars().take(MAX_MESSAGE_CHARACTERS).collect();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": about.namespace },
        "eventTime": format!("{now:.6}"),
        "type": if note.warning { "Warning" } else { "Normal" },
        "reason": note.reason,
        "action": note.reason,
        "note": text,
        "reportingController": note.reporter,
        "reportingInstance": note.reporter,
        "regarding": { "apiVersion": about.api_version, "kind": about.kind, "name": about.name, "namespace": about.namespace, "uid": about.uid },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(reason: &str, number: u32) -> Note {
        let about = Owner {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: "game".to_owned(),
            namespace: "play".to_owned(),
            uid: "u1".to_owned(),
        };
        Note { about, reporter: "r", warning: false, reason: reason.to_owned(), message: format!("pod {number}") }
    }

    #[tokio::test]
    async fn a_flood_of_one_namespace_delays_no_other_and_does_not_fill_the_memory() {
        let shared = Shared::default();
        for number in 0..10_000 {
            shared.push(note("Created", number));
        }
        assert_eq!(shared.waiting().0, WAITING_OF_ONE);
        let mut other = note("Created", 1);
        other.about.namespace = "other".to_owned();
        shared.push(other);
        let next = [shared.next().await.about.namespace, shared.next().await.about.namespace];
        assert!(next.contains(&"other".to_owned()), "{next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_ten_alike_are_told_one_by_one_and_the_rest_together() {
        let mut windows = HashMap::new();
        let single = (0..500).filter_map(|number| admit(&mut windows, note("Created", number))).count();
        assert_eq!(single, 10);
        let together = folded(&mut windows);
        assert_eq!(together.iter().map(|note| note.message.as_str()).collect::<Vec<_>>(), ["pod 499 (and 489 more like it)"]);
        assert!(folded(&mut windows).is_empty(), "told twice");
    }

    #[tokio::test(start_paused = true)]
    async fn another_reason_and_another_minute_count_anew() {
        let mut windows = HashMap::new();
        (0..20).for_each(|number| drop(admit(&mut windows, note("Created", number))));
        assert!(admit(&mut windows, note("Deleted", 0)).is_some());
        tokio::time::advance(WINDOW).await;
        assert!(admit(&mut windows, note("Created", 21)).is_some());
    }
}
