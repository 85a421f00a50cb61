//! Fake nodes: nodes and pods that are only simulated through the API.
//!
//! The simulation has its own thread, because programs that use a cluster may block theirs.

mod life;
mod node;
mod play;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::build::go_architecture;
use crate::controlplane::{ControlPlane, config_from};
use crate::error::{Asking, Doing, Error, Result};
use crate::pki::Subject;
use crate::process::last_line;
use crate::rundir::RunDir;

/// The label of fake nodes. With any value but `on` the node stops reporting: no heartbeat, no change to its pods.
pub const FAKE_LABEL: &str = "localkube/fake";

/// The user that reports for fake nodes. The audit policy leaves its requests out.
const USER: &str = "fake-nodes";

/// The running simulation of fake nodes. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct FakeNodes {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    alive: watch::Receiver<()>,
    log: PathBuf,
}

impl FakeNodes {
    /// Runs `play` on its own thread until the result is dropped.
    fn on_a_thread(log: PathBuf, play: impl FnOnce(oneshot::Receiver<()>) + Send + 'static) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (living, alive) = watch::channel(());
        let thread = std::thread::Builder::new().name(USER.to_owned()).spawn(move || {
            let _living = living;
            play(stopped);
        });
        let thread = thread.doing(|| "cannot simulate fake nodes".to_owned())?;
        Ok(Self { stop: Some(stop), thread: Some(thread), alive, log })
    }

    /// Waits until the simulation has ended by itself, which it does only after an error.
    pub(crate) async fn ended(&self) -> Error {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
        Error::Died {
            name: USER.to_owned(),
            status: "the simulation of fake nodes has ended".to_owned(),
            log: self.log.clone(),
            tail: last_line(&self.log),
        }
    }
}

impl Drop for FakeNodes {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A log of errors, in the run's folder.
#[derive(Debug, Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    fn say(&self, what: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An error of the log cannot be reported anywhere.
        let _ = writeln!(file, "{} {what}", Timestamp::now());
    }
}

/// A client in the group of nodes too, by which admission policies recognise reports of nodes. A certificate has one
/// group only.
async fn reporter(kubeconfig: &Path) -> Result<Client> {
    let mut config = config_from(kubeconfig).await?;
    config.auth_info.impersonate = Some(USER.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned(), "system:nodes".to_owned()]);
    Client::try_from(config).asking("cannot create a client")
}

/// Creates the nodes `fake-1` to `fake-<count>` and simulates every node with the label, these or others.
pub(crate) async fn start(run: &RunDir, plane: &ControlPlane, count: u32) -> Result<FakeNodes> {
    let kubeconfig = plane.kubeconfig_for(run, USER, &Subject { user: USER, group: Some("system:masters") })?;
    let file = run.path().join("logs").join(format!("{USER}.log"));
    let log = Log(Arc::new(Mutex::new(File::create(&file).doing(|| format!("cannot create {}", file.display()))?)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().doing(|| "cannot simulate fake nodes".to_owned())?;
    let fake = FakeNodes::on_a_thread(file, move |stopped| simulate(&runtime, &kubeconfig, log, stopped))?;
    let nodes: Api<Node> = Api::all(plane.client.clone());
    futures::stream::iter((1..=count).map(|number| create(&nodes, number))).buffer_unordered(16).try_collect::<Vec<()>>().await?;
    Ok(fake)
}

/// Simulates nodes until `stopped`, or until an error. Not async, so that it is compiled in this crate: an async function is
/// compiled where it is polled, which for tests is a crate that is not optimised.
fn simulate(runtime: &Runtime, kubeconfig: &Path, log: Log, stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        match reporter(kubeconfig).await {
            Ok(client) => tokio::select! {
                () = play::play(client, log) => {}
                _ = stopped => {}
            },
            Err(error) => log.say(&error.to_string()),
        }
    });
}

async fn create(nodes: &Api<Node>, number: u32) -> Result<()> {
    let name = format!("fake-{number}");
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": {
            FAKE_LABEL: "on",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": go_architecture(),
        }},
    });
    let node = serde_json::from_value(node).map_err(|error| Error::Invalid(format!("{name}: {error}")))?;
    nodes.create(&PostParams::default(), &node).await.asking("cannot create a fake node").map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_end_of_the_simulation_is_noticed() {
        let log = PathBuf::from("/nowhere/fake-nodes.log");
        let ended = FakeNodes::on_a_thread(log.clone(), drop).unwrap();
        assert!(matches!(ended.ended().await, Error::Died { name, .. } if name == USER));
        let playing = FakeNodes::on_a_thread(log, |stopped| drop(stopped.blocking_recv())).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), playing.ended()).await.is_err(), "it still runs");
    }
}
