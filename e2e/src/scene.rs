//! What one test works with: a cluster and a namespace of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use localkube::Cluster;
use serde_json::{Value, json};

use crate::wait::{eventually, until};

/// The cluster and the namespace of one test.
#[derive(Debug)]
pub struct Scene {
    cluster: Arc<Cluster>,
    namespace: String,
}

impl Scene {
    /// Creates the namespace of `test`.
    pub async fn open(cluster: Arc<Cluster>, test: &str) -> Result<Self> {
        let namespace: String = test.rsplit("::").next().unwrap_or(test).replace('_', "-").chars().take(50).collect();
        let scene = Self { cluster, namespace: namespace.trim_end_matches('-').to_owned() };
        let namespaces: Api<Namespace> = Api::all(scene.client());
        let object = serde_json::from_value(json!({ "metadata": { "name": scene.namespace } }))?;
        namespaces.create(&PostParams::default(), &object).await.context("cannot create the test's namespace")?;
        let accounts: Api<ServiceAccount> = scene.api();
        until(&accounts, "default", "ServiceAccount", |account| account.is_some()).await?;
        Ok(scene)
    }

    pub(crate) async fn close(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        namespaces.delete(&self.namespace, &DeleteParams::background()).await?;
        Ok(())
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The test's own namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client with all rights.
    #[must_use]
    pub fn client(&self) -> Client {
        self.cluster().client()
    }

    /// Objects of one kind in the test's namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Objects of one of the operator's kinds in the test's namespace.
    #[must_use]
    pub fn custom(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: "tkex.tencent.com".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "tkex.tencent.com/v1alpha1".to_owned(),
            kind: kind.to_owned(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        Api::namespaced_with(self.client(), &self.namespace, &resource)
    }

    /// Pods of the test.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// Runs `kubectl` in the test's namespace and returns its output, or an error with what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        run(self.kubectl_command().args(words), "")
    }

    /// `kubectl` in the test's namespace, to be run by the caller.
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        let mut command = self.cluster().kubectl();
        command.args(["--namespace", &self.namespace]);
        command
    }

    /// Applies an object with kubectl, as a user does.
    pub fn apply(&self, object: &Value) -> Result<()> {
        run(self.kubectl_command().args(["apply", "-f", "-"]), &object.to_string()).map(drop)
    }

    /// Applies a file of this repository, `examples/tkex/drain.yaml` for one.
    pub fn apply_file(&self, path: &str) -> Result<()> {
        run(self.kubectl_command().args(["apply", "-f"]).arg(root().join(path)), "").map(drop)
    }

    /// What kubectl prints when it is refused; an error if it is not.
    pub fn refusal(&self, words: &[&str]) -> Result<String> {
        match self.kubectl(words) {
            Ok(said) => bail!("kubectl {} was not refused: {said}", words.join(" ")),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    /// Waits until `kubectl auth can-i` answers yes: new Roles take effect after a moment.
    pub async fn until_allowed(&self, words: &[&str]) -> Result<()> {
        let question = [&["auth", "can-i"][..], words].concat();
        eventually("the Role has no effect", || self.kubectl(&question).is_ok_and(|answer| answer.trim() == "yes")).await
    }

    /// Creates a pod with one container `game` on the given image, changed by `with` (a merge patch).
    pub fn pod(&self, name: &str, image: &str, with: &Value) -> Result<()> {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "terminationGracePeriodSeconds": 5, "containers": [{ "name": "game", "image": image }] },
        });
        merge(&mut pod, with);
        self.apply(&pod)
    }

    /// Changes a pod with a strategic merge patch.
    pub async fn patch_pod(&self, name: &str, change: Value) -> Result<()> {
        self.pods().patch(name, &PatchParams::default(), &Patch::Strategic(change)).await?;
        Ok(())
    }

    /// Sets the image of one of a pod's containers.
    pub async fn set_image(&self, pod: &str, container: &str, image: &str) -> Result<()> {
        self.patch_pod(pod, json!({ "spec": { "containers": [{ "name": container, "image": image }] } })).await
    }

    /// Writes what is needed to understand a failure into `folder`.
    pub(crate) fn describe(&self, folder: &Path) -> Result<()> {
        describe(self.cluster(), &["--namespace", &self.namespace], folder)
    }
}

/// Writes what is needed to understand a failure into `folder`: objects and events of one namespace or of all, nodes and
/// logs.
pub(crate) fn describe(cluster: &Cluster, scope: &[&str], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let dump = |name: &str, words: &[&str]| {
        let text = run(cluster.kubectl().args(words).args(scope), "").unwrap_or_else(|error| format!("{error:#}"));
        std::fs::write(folder.join(name), text)
    };
    dump("objects.yaml", &["get", "all,gd,ht,hr,controllerrevisions,pdb,pvc,events", "-o", "yaml"])?;
    dump("events.txt", &["get", "events", "--sort-by=.lastTimestamp"])?;
    dump("pods.txt", &["get", "pods", "-o", "wide"])?;
    dump("describe.txt", &["describe", "pods"])?;
    dump("nodes.txt", &["describe", "nodes"])?;
    std::fs::write(folder.join("processes.txt"), processes(cluster)?)?;
    let (logs, target) = (cluster.folder().join("logs"), folder.join("logs"));
    std::fs::create_dir_all(&target)?;
    for log in std::fs::read_dir(logs)?.flatten().filter(|log| log.path().is_file()) {
        std::fs::copy(log.path(), target.join(log.file_name()))?;
    }
    Ok(())
}

/// Which processes of a cluster run, and which have died.
fn processes(cluster: &Cluster) -> Result<String> {
    let mut lines = Vec::new();
    for file in std::fs::read_dir(cluster.folder())?.flatten().map(|entry| entry.path()) {
        if file.extension().is_some_and(|extension| extension == "pid") {
            let pid = std::fs::read_to_string(&file)?;
            let runs = Path::new("/proc").join(pid.trim()).exists();
            lines.push(format!("{} {} {}", file.display(), pid.trim(), if runs { "runs" } else { "is dead" }));
        }
    }
    lines.sort();
    Ok(lines.join("\n"))
}

/// The folder of this repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// Runs a command with `input` and returns its output, or an error with what it printed.
pub fn run(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
