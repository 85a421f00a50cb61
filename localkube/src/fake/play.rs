//! Plays nodes and their pods: watches both, asks [`life`] what comes next, and reports it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::life::{self, Step};
use super::node::WorkingNode;
use super::{FAKE_LABEL, Log};

/// Concurrent reports, about as many as a real cluster of this size would have.
const AT_ONCE: usize = 16;
/// Delay after a report that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Pods get the addresses after this one.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);

/// A report or a removal. Returns the uid of the pod, and the pod after a report.
type Write = Pin<Box<dyn Future<Output = (String, kube::Result<Option<Pod>>)> + Send>>;

/// Simulates nodes and pods until it is dropped.
pub(super) async fn play(client: Client, log: Log) {
    let working = Config::default().labels(&format!("{FAKE_LABEL}=on"));
    let scheduled = Config::default().fields("spec.nodeName!=");
    let watch_nodes = || watcher(Api::<Node>::all(client.clone()), working.clone()).default_backoff().boxed();
    let watch_pods = || watcher(Api::<Pod>::all(client.clone()), scheduled.clone()).default_backoff().boxed();
    let (mut nodes, mut pods) = (watch_nodes(), watch_pods());
    let mut player = Player::new(client.clone(), log);
    let mut writes = FuturesUnordered::<Write>::new();
    loop {
        let first = player.waiting.first().map_or_else(Instant::now, |(due, _)| *due);
        tokio::select! {
            Some(event) = nodes.next() => match event {
                Ok(event) => player.node_event(event),
                Err(error) if history_is_gone(&error) => nodes = watch_nodes(),
                Err(error) => player.log.say(&format!("watch of nodes: {error}")),
            },
            Some(event) = pods.next() => match event {
                Ok(event) => player.pod_event(event),
                Err(error) if history_is_gone(&error) => pods = watch_pods(),
                Err(error) => player.log.say(&format!("watch of pods: {error}")),
            },
            Some((uid, answer)) = writes.next() => player.answered(&uid, answer),
            () = tokio::time::sleep_until(first), if !player.waiting.is_empty() => player.wake(),
        }
        while writes.len() < AT_ONCE
            && let Some(write) = player.next_write()
        {
            writes.push(write);
        }
    }
}

/// Whether the watch has to be started anew: the watcher would request the expired version for ever.
fn history_is_gone(error: &Error) -> bool {
    matches!(error, Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

struct Player {
    client: Client,
    log: Log,
    /// The working nodes, by name.
    nodes: HashMap<String, WorkingNode>,
    /// By uid.
    pods: HashMap<String, Entry>,
    /// The uids in the list that is being received: pods that are not in it are gone.
    listed: HashSet<String>,
    /// The uids of the pods to examine.
    queue: VecDeque<String>,
    /// The uids of the pods to examine later.
    waiting: BTreeSet<(Instant, String)>,
    /// How many addresses were allocated.
    addresses: u32,
}

struct Entry {
    pod: Pod,
    /// Whether a write of this pod is running.
    busy: bool,
    queued: bool,
    /// When it will be examined at the latest.
    wake: Option<Instant>,
    /// Since when there is something to report.
    noticed: Option<Instant>,
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

impl Player {
    fn new(client: Client, log: Log) -> Self {
        let (nodes, pods, listed) = (HashMap::new(), HashMap::new(), HashSet::new());
        Self { client, log, nodes, pods, listed, queue: VecDeque::new(), waiting: BTreeSet::new(), addresses: 0 }
    }

    fn node_event(&mut self, event: Event<Node>) {
        match event {
            Event::Apply(node) | Event::InitApply(node) => self.node_works(&node),
            Event::Delete(node) => drop(self.nodes.remove(&node.name_any())),
            Event::Init => self.nodes.clear(),
            Event::InitDone => {}
        }
    }

    fn node_works(&mut self, node: &Node) {
        let name = node.name_any();
        if let Some(working) = self.nodes.get(&name) {
            working.seen(node);
            return;
        }
        self.nodes.insert(name.clone(), WorkingNode::new(self.client.clone(), node, self.log.clone()));
        let here = self.pods.iter().filter(|(_, entry)| entry.node() == name).map(|(uid, _)| uid.clone());
        here.collect::<Vec<_>>().iter().for_each(|uid| self.enqueue(uid));
    }

    fn pod_event(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) => self.is_now(&pod.uid().unwrap_or_default(), pod),
            Event::InitApply(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.is_now(&uid, pod);
                self.listed.insert(uid);
            }
            Event::Delete(pod) => drop(self.pods.remove(&pod.uid().unwrap_or_default())),
            Event::Init => self.listed.clear(),
            Event::InitDone => self.pods.retain(|uid, _| self.listed.contains(uid)),
        }
    }

    /// Takes the pod from the watch or from an answer, whichever has the newer version.
    fn is_now(&mut self, uid: &str, pod: Pod) {
        match self.pods.get_mut(uid) {
            Some(entry) if version(&pod) <= version(&entry.pod) => {}
            Some(entry) => entry.pod = pod,
            None => drop(self.pods.insert(uid.to_owned(), Entry { pod, busy: false, queued: false, wake: None, noticed: None })),
        }
        self.enqueue(uid);
    }

    fn enqueue(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid).filter(|entry| !entry.queued && !entry.busy) {
            entry.queued = true;
            self.queue.push_back(uid.to_owned());
        }
    }

    fn enqueue_later(&mut self, uid: &str, due: Instant) {
        if let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.wake.is_none_or(|wake| due < wake)) {
            entry.wake = Some(due);
            self.waiting.insert((due, uid.to_owned()));
        }
    }

    /// Queues the pods that are due.
    fn wake(&mut self) {
        let later = self.waiting.split_off(&(Instant::now(), String::new()));
        for (due, uid) in std::mem::replace(&mut self.waiting, later) {
            if let Some(entry) = self.pods.get_mut(&uid).filter(|entry| entry.wake == Some(due)) {
                entry.wake = None;
            }
            self.enqueue(&uid);
        }
    }

    fn answered(&mut self, uid: &str, answer: kube::Result<Option<Pod>>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.busy = false;
        match answer {
            Ok(Some(pod)) => self.is_now(uid, pod),
            // The watch tells when it is gone; a finalizer may still keep it.
            Ok(None) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => drop(self.pods.remove(uid)),
            Err(error) => {
                self.log.say(&format!("{}: {error}", entry.pod.name_any()));
                self.enqueue_later(uid, Instant::now() + RETRY);
            }
        }
    }

    /// Examines the queued pods until there is something to write.
    fn next_write(&mut self) -> Option<Write> {
        loop {
            let uid = self.queue.pop_front()?;
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            entry.queued = false;
            if entry.busy || !self.nodes.contains_key(entry.node()) {
                continue;
            }
            let (now, addresses) = (Timestamp::now(), &mut self.addresses);
            let step = life::next(&entry.pod, now, || {
                *addresses += 1;
                Ipv4Addr::from_bits(NETWORK.to_bits() + *addresses)
            });
            let asked = Instant::now();
            match step {
                Step::Rest => entry.noticed = None,
                Step::At(due) => {
                    entry.noticed = None;
                    self.enqueue_later(&uid, asked + Duration::try_from(due.duration_since(now)).unwrap_or_default());
                }
                Step::Report { status, hesitate } => {
                    let due = *entry.noticed.get_or_insert(asked) + hesitate;
                    if due > asked {
                        self.enqueue_later(&uid, due);
                        continue;
                    }
                    (entry.noticed, entry.busy) = (None, true);
                    return Some(Box::pin(report(self.client.clone(), uid, entry.pod.namespace(), entry.pod.name_any(), status)));
                }
                Step::Remove => {
                    entry.busy = true;
                    return Some(Box::pin(remove(self.client.clone(), uid, entry.pod.namespace(), entry.pod.name_any())));
                }
            }
        }
    }
}

impl Entry {
    fn node(&self) -> &str {
        self.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
    }
}

async fn report(
    client: Client,
    uid: String,
    namespace: Option<String>,
    name: String,
    status: Value,
) -> (String, kube::Result<Option<Pod>>) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace.unwrap_or_default());
    let change = json!({ "metadata": { "uid": uid }, "status": status });
    let answer = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(change)).await;
    (uid, answer.map(Some))
}

async fn remove(client: Client, uid: String, namespace: Option<String>, name: String) -> (String, kube::Result<Option<Pod>>) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace.unwrap_or_default());
    let this = Preconditions { uid: Some(uid.clone()), resource_version: None };
    let answer = pods.delete(&name, &DeleteParams { preconditions: Some(this), ..DeleteParams::default().grace_period(0) }).await;
    (uid, answer.map(|_| None))
}
