//! A cluster: start, use, stop.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::cache::Cache;
use crate::controlplane::{AUDIT_LOG, Addresses, ControlPlane, ReservedPort, client_from, first_death, within};
use crate::error::{Asking, Doing, Error, Result};
use crate::fake::{self, FakeNodes};
use crate::image::Image;
use crate::nodes::{NODES_WITHIN, wait_nodes_ready};
use crate::options::{Options, Pace};
use crate::pki::{Credential, kubeconfig, write_private};
use crate::process::{Daemon, bound_command};
use crate::real::{self, Network, RealNode, RealNodes};
use crate::registry::Registry;
use crate::rundir::RunDir;
use crate::tools::Tool;
use crate::volumes::{self, Provisioner};

/// A running cluster. Dropping it stops everything and leaves nothing behind.
pub struct Cluster {
    // Fields are dropped in this order: users of the network first, the folder last.
    parts: Parts,
    network: Option<Network>,
    run: RunDir,
    cache: Cache,
}

/// The running parts of a cluster.
struct Parts {
    _volumes: Provisioner,
    fake: Option<FakeNodes>,
    real: Option<RealNodes>,
    plane: ControlPlane,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Cluster").field("folder", &self.run.path()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Builds what is missing, starts everything and returns when the cluster is ready: API server ready, default
    /// ServiceAccount present, nodes Ready.
    ///
    /// Boxed, so that it is compiled here once and not in each program that starts a cluster.
    pub fn start(options: &Options) -> BoxFuture<'_, Result<Self>> {
        Self::start_all(options).boxed()
    }

    async fn start_all(options: &Options) -> Result<Self> {
        // Fails if the process has chosen a provider already, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        if options.real_nodes > 0 {
            real::check(options)?;
        }
        // All options are checked before the long build.
        let run = RunDir::create()?;
        if let Some(copy) = &options.kubeconfig {
            run.prepare_copy(copy)?;
        }
        let network = if options.real_nodes > 0 { Some(Network::create(&run)?) } else { None };
        let addresses = network.as_ref().map_or_else(loopback, Network::addresses);
        let port = ReservedPort::take(addresses.api, options.port)?;
        let cache = Cache::new(options.kube, options.progress);
        prepare(&cache, options).await?;
        match Parts::start(&run, &cache, options, network.as_ref(), &addresses, port).await {
            Ok(parts) => {
                let kubectl = run.path().join("bin/kubectl");
                std::os::unix::fs::symlink(cache.binary(Tool::Kubectl)?, kubectl).doing(|| "cannot link kubectl".to_owned())?;
                if let Some(copy) = &options.kubeconfig {
                    run.write_copy(copy)?;
                }
                options.progress.say("cluster ready");
                Ok(Self { parts, network, run, cache })
            }
            Err(error) => Err(with_evidence(error, &run, &cache)),
        }
    }

    /// A client with administrator rights.
    #[must_use]
    pub fn client(&self) -> Client {
        self.parts.plane.client.clone()
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.parts.plane.admin_kubeconfig
    }

    /// The run's folder: logs, kubeconfigs, the registry's content.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.run.path()
    }

    /// The folder with kubectl.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.run.path().join("bin")
    }

    /// kubectl of the cluster's version, as administrator.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.programs().join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Environment for a program that uses this cluster: KUBECONFIG, LOCALKUBE_DIR and a PATH that starts with
    /// kubectl's folder.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.programs()).chain(std::env::split_paths(&old));
        let path = std::env::join_paths(folders).unwrap_or(old.clone());
        vec![("KUBECONFIG", self.kubeconfig().into()), ("LOCALKUBE_DIR", self.folder().into()), ("PATH", path)]
    }

    /// The API server's audit log, if [`Options::audit`] was set.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.run.path().join(AUDIT_LOG)
    }

    /// Real nodes, in order.
    #[must_use]
    pub fn real_nodes(&self) -> &[RealNode] {
        self.parts.real.as_ref().map_or(&[], |real| &real.nodes)
    }

    /// Sets the network link of a real node up or down.
    pub fn set_link(&self, node: &RealNode, up: bool) -> Result<()> {
        match &self.network {
            Some(network) => network.set_link(node.number(), up),
            None => Ok(()),
        }
    }

    /// Makes an image available to real nodes.
    pub fn push_image(&self, name: &str, image: &Image) -> Result<String> {
        self.registry()?.push(name, image)
    }

    /// The images of real nodes.
    pub fn registry(&self) -> Result<&Registry> {
        let real = self.parts.real.as_ref();
        real.map(|real| &real.registry).ok_or_else(|| Error::Invalid("images are for clusters with real nodes".to_owned()))
    }

    /// The cache of the cluster's binaries.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Restarts the built-in controllers with another rate limit.
    pub fn restart_controllers(&mut self, pace: Pace) -> Result<()> {
        self.parts.plane.restart_controllers(&self.run, &self.cache, pace)
    }

    /// Runs a program beside the cluster until the result is dropped. Its output is in `logs/<name>.log` of the run's
    /// folder, its pid in `<name>.pid`.
    pub fn run_beside(&self, name: &str, program: &Path, arguments: &[OsString], environment: &[(&str, OsString)]) -> Result<Daemon> {
        let mut command = bound_command(program);
        command.args(arguments).envs(environment.iter().cloned());
        Daemon::start(name, self.run.path(), command)
    }

    /// Returns when a part of the cluster has died, with its name, and keeps the logs.
    pub async fn death(&self) -> Error {
        with_evidence(self.parts.death().await, &self.run, &self.cache)
    }

    /// A kubeconfig for a ServiceAccount, in the run's folder.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let content = service_account_kubeconfig(self.kubeconfig(), namespace, name).await?;
        let path = self.run.path().join(format!("{namespace}.{name}.kubeconfig"));
        let _ = std::fs::remove_file(&path);
        write_private(&path, &content)?;
        Ok(path)
    }
}

impl Parts {
    async fn start(
        run: &RunDir,
        cache: &Cache,
        options: &Options,
        network: Option<&Network>,
        addresses: &Addresses,
        port: ReservedPort,
    ) -> Result<Self> {
        let plane = ControlPlane::start(run, cache, options, addresses, port).await?;
        let fake = match options.fake_nodes {
            0 => None,
            count => Some(fake::start(run, &plane, count).await?),
        };
        let real = match network {
            None => None,
            Some(network) => Some(RealNodes::start(run, cache, &plane, network, options).await?),
        };
        let volumes = volumes::start(&plane.client, run.path().to_owned()).await?;
        let parts = Self { _volumes: volumes, fake, real, plane };
        parts.plane.wait_default_service_account().await?;
        let count = options.fake_nodes.saturating_add(options.real_nodes) as usize;
        within(NODES_WITHIN, "a node", parts.death(), wait_nodes_ready(&parts.plane.client, count)).await?;
        Ok(parts)
    }

    /// Returns when a part has died.
    async fn death(&self) -> Error {
        let fake = async {
            match &self.fake {
                Some(fake) => fake.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            death = first_death(self.daemons()) => death,
            death = fake => death,
        }
    }

    /// Every process that must stay alive.
    fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        let real = self.real.iter().flat_map(|real| real.daemons.iter().chain(real.nodes.iter().flat_map(RealNode::daemons)));
        self.plane.daemons.iter().chain(real)
    }
}

/// Keeps the logs of a failed run and adds their path to the error. If a binary is damaged, the error names it instead:
/// the part that died may be another one, which gave up on a part that hangs.
fn with_evidence(mut error: Error, run: &RunDir, cache: &Cache) -> Error {
    let logs = run.keep_logs();
    if !matches!(error, Error::Died { .. } | Error::NotReady { .. }) {
        return error;
    }
    if let Some(tool) = Tool::all().find(|tool| matches!(cache.inspect(*tool), Ok(Some(false)))) {
        return Error::Damaged { tool: tool.name().to_owned() };
    }
    if let Error::Died { name, log, .. } = &mut error {
        *log = logs.join(format!("{name}.log"));
    } else if let Error::NotReady { last, .. } = &mut error {
        *last = format!("{last}; the logs are in {}", logs.display());
    }
    error
}

/// A kubeconfig for a ServiceAccount of the cluster that `admin` (a kubeconfig file) reaches; its token is valid for a
/// day.
pub async fn service_account_kubeconfig(admin: &Path, namespace: &str, name: &str) -> Result<String> {
    let client = client_from(admin).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .asking(&format!("cannot get a token for ServiceAccount {namespace}/{name}"))?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    let (server, authority) = server_of(admin)?;
    Ok(kubeconfig(&server, &authority, &Credential::Token(&token)))
}

fn server_of(admin: &Path) -> Result<(String, String)> {
    let invalid = |what: &str| Error::Invalid(format!("{}: {what}", admin.display()));
    let config = kube::config::Kubeconfig::read_from(admin).map_err(|error| invalid(&error.to_string()))?;
    let cluster = config.clusters.into_iter().find_map(|named| named.cluster).ok_or_else(|| invalid("names no cluster"))?;
    let authority: k8s_openapi::ByteString =
        serde_json::from_value(serde_json::json!(cluster.certificate_authority_data)).map_err(|_| invalid("carries no CA"))?;
    let authority = String::from_utf8(authority.0).map_err(|_| invalid("carries a CA that is not PEM"))?;
    Ok((cluster.server.unwrap_or_default(), authority))
}

async fn prepare(cache: &Cache, options: &Options) -> Result<()> {
    let mut tools = Tool::CONTROL_PLANE.to_vec();
    if options.real_nodes > 0 {
        tools.extend(Tool::REAL_NODES);
    }
    let cache = cache.clone();
    let build = tokio::task::spawn_blocking(move || cache.ensure(tools));
    build.await.unwrap_or_else(|error| Err(Error::Invalid(format!("the build was aborted: {error}"))))
}

fn loopback() -> Addresses {
    Addresses {
        api: IpAddr::V4(Ipv4Addr::LOCALHOST),
        services: "10.96.0.0/16".to_owned(),
        first_service: Ipv4Addr::new(10, 96, 0, 1).into(),
    }
}
