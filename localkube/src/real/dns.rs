//! Cluster DNS: CoreDNS on the host's address, which the kubelets configure in every pod.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::controlplane::ControlPlane;
use crate::error::{Asking, Error, Result};
use crate::pki::Subject;
use crate::process::{Daemon, bound_command};
use crate::real::network::Network;
use crate::rundir::RunDir;
use crate::tools::Tool;

const USER: &str = "coredns";

pub(crate) async fn start(run: &RunDir, cache: &Cache, plane: &ControlPlane, network: &Network) -> Result<Daemon> {
    allow_reading(&plane.client).await?;
    let kubeconfig = plane.kubeconfig_for(run, "coredns", &Subject { user: USER, group: None })?;
    let corefile = format!(
        ".:53 {{\n  bind {}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {} localkube\n    ttl 5\n  }}\n}}\n",
        network.host(),
        kubeconfig.display()
    );
    let corefile = run.file("Corefile", corefile)?;
    let mut command = bound_command(cache.binary(Tool::Coredns)?);
    command.arg("-conf").arg(corefile);
    Daemon::start("coredns", run.path(), command)
}

async fn allow_reading(client: &Client) -> Result<()> {
    let role = json!({
        "metadata": { "name": USER },
        "rules": [
            { "apiGroups": [""], "resources": ["namespaces", "services"], "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
        ],
    });
    let binding = json!({
        "metadata": { "name": USER },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER }],
    });
    create::<ClusterRole>(client, role).await?;
    create::<ClusterRoleBinding>(client, binding).await
}

async fn create<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).map_err(|error| Error::Invalid(error.to_string()))?;
    Api::<K>::all(client.clone()).create(&PostParams::default(), &object).await.asking("cannot give CoreDNS its role").map(drop)
}
