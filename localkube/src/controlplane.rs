//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with real TLS and RBAC.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use crate::cache::Cache;
use crate::error::{Asking, Doing, Error, Result};
use crate::options::{Options, Pace};
use crate::pki::{Authority, Credential, Subject, kubeconfig, write_private};
use crate::process::{Daemon, bound_command};
use crate::rundir::{ADMIN, RunDir};
use crate::tools::Tool;

const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const READY_WITHIN: Duration = Duration::from_secs(90);

/// The address and port of the API server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn url(self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.port))
    }
}

/// A reserved port: bound with SO_REUSEPORT but never listened on, so that only the API server
/// (`--permit-port-sharing`) can use it.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) port: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub(crate) fn take(address: IpAddr, port: Option<u16>) -> Result<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
        let failed = || format!("cannot reserve a port on {address}");
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        // The bind below would not fail if another process shares the port.
        if let Some(port) = port
            && let Err(error) = std::net::TcpListener::bind(SocketAddr::new(address, port))
        {
            let address = address.to_string();
            return Err(if error.kind() == std::io::ErrorKind::AddrInUse {
                Error::PortTaken { address, port }
            } else {
                Error::Io { doing: format!("cannot listen on port {port}"), reason: error }
            });
        }
        let socket = socket(family, SocketType::STREAM, None).doing(failed)?;
        sockopt::set_socket_reuseport(&socket, true).doing(failed)?;
        bind(&socket, &SocketAddr::new(address, port.unwrap_or(0))).doing(failed)?;
        let bound = getsockname(&socket).doing(failed)?;
        let port = SocketAddr::try_from(bound).map(|address| address.port()).doing(failed)?;
        Ok(Self { port, _socket: socket })
    }
}

/// A running control plane.
pub(crate) struct ControlPlane {
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) authority: Authority,
    pub(crate) endpoint: Endpoint,
    pub(crate) admin_kubeconfig: PathBuf,
    pub(crate) client: Client,
    node_grace: Option<Duration>,
    _port: ReservedPort,
}

/// The addresses of the API server and of Services.
pub(crate) struct Addresses {
    pub(crate) api: IpAddr,
    pub(crate) services: String,
    /// The address of the Service `kubernetes`.
    pub(crate) first_service: IpAddr,
}

impl ControlPlane {
    pub(crate) async fn start(run: &RunDir, cache: &Cache, options: &Options, addresses: &Addresses, port: ReservedPort) -> Result<Self> {
        let authority = Authority::create(run)?;
        let endpoint = Endpoint { address: addresses.api, port: port.port };
        let mut daemons = vec![start_etcd(run, cache)?];
        daemons.push(start_apiserver(run, cache, options, addresses, &authority, endpoint)?);
        let admin = Subject { user: "localkube-admin", group: Some("system:masters") };
        let admin_kubeconfig = component_kubeconfig(run, &authority, endpoint, "admin", &admin)?;
        let client = client_from(&admin_kubeconfig).await?;
        let mut plane = Self { daemons, authority, endpoint, admin_kubeconfig, client, node_grace: options.node_grace, _port: port };
        plane.wait_ready().await?;
        options.progress.say("API server ready");
        plane.daemons.push(start_controller_manager(run, cache, &plane, Pace::Unlimited)?);
        plane.daemons.push(start_scheduler(run, cache, &plane)?);
        Ok(plane)
    }

    /// Restarts the built-in controllers with another rate limit.
    pub(crate) fn restart_controllers(&mut self, run: &RunDir, cache: &Cache, pace: Pace) -> Result<()> {
        self.daemons.retain(|daemon| daemon.name() != CONTROLLER_MANAGER);
        self.daemons.push(start_controller_manager(run, cache, self, pace)?);
        Ok(())
    }

    async fn wait_ready(&self) -> Result<()> {
        let ready = async {
            loop {
                let request = http::Request::get("/readyz").body(Vec::new());
                let request = request.map_err(|error| Error::Invalid(format!("cannot ask for /readyz: {error}")))?;
                if self.client.request_text(request).await.is_ok() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(READY_WITHIN, "kube-apiserver", first_death(&self.daemons), ready).await
    }

    /// Waits for the ServiceAccount that every pod needs.
    pub(crate) async fn wait_default_service_account(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        let there = async {
            let found = |account: Option<&ServiceAccount>| account.is_some();
            kube::runtime::wait::await_condition(accounts, "default", found)
                .await
                .map(drop)
                .map_err(|error| Error::Invalid(format!("cannot watch ServiceAccounts: {error}")))
        };
        within(READY_WITHIN, "the default ServiceAccount", first_death(&self.daemons), there).await
    }

    /// A kubeconfig for a component, with its own certificate.
    pub(crate) fn kubeconfig_for(&self, run: &RunDir, name: &str, subject: &Subject<'_>) -> Result<PathBuf> {
        component_kubeconfig(run, &self.authority, self.endpoint, name, subject)
    }
}

/// Returns when one of the daemons has died.
pub(crate) async fn first_death<'a>(daemons: impl IntoIterator<Item = &'a Daemon>) -> Error {
    futures::future::select_all(daemons.into_iter().map(|daemon| Box::pin(daemon.ended()))).await.0
}

/// Waits for `ready`; fails after `limit`, or when a part of the cluster dies.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    death: impl Future<Output = Error>,
    ready: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        done = ready => done,
        death = death => Err(death),
        () = tokio::time::sleep(limit) => {
            Err(Error::NotReady { what: what.to_owned(), after: limit, last: "no part has died".to_owned() })
        }
    }
}

/// A client for a kubeconfig file.
pub(crate) async fn client_from(file: &Path) -> Result<Client> {
    Client::try_from(config_from(file).await?).asking("cannot create a client")
}

/// The client configuration from a kubeconfig file.
pub(crate) async fn config_from(file: &Path) -> Result<kube::Config> {
    let invalid = |error: kube::config::KubeconfigError| Error::Invalid(format!("{}: {error}", file.display()));
    let read = kube::config::Kubeconfig::read_from(file).map_err(invalid)?;
    kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await.map_err(invalid)
}

fn component_kubeconfig(run: &RunDir, authority: &Authority, endpoint: Endpoint, name: &str, subject: &Subject<'_>) -> Result<PathBuf> {
    let path = if name == "admin" { run.path().join(ADMIN) } else { run.path().join(format!("{name}.kubeconfig")) };
    // A restarted component keeps its identity.
    if path.exists() {
        return Ok(path);
    }
    let identity = authority.client(run, name, subject)?;
    let config = kubeconfig(&endpoint.url(), authority.certificate(), &Credential::Certificate(&identity));
    write_private(&path, &config)?;
    Ok(path)
}

/// etcd listens on sockets in the run's folder: no port can collide, and only the owner can access the data. The
/// advertised address is required but never used.
fn start_etcd(run: &RunDir, cache: &Cache) -> Result<Daemon> {
    let nowhere = "unix://localhost:1";
    let mut command = bound_command(cache.binary(Tool::Etcd)?);
    command
        .arg("--data-dir")
        .arg(run.path().join("etcd"))
        .args(["--name=localkube", "--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=8589934592"])
        .arg(format!("--listen-client-urls={}", etcd_socket(run)))
        .arg(format!("--listen-peer-urls=unix://{}", run.path().join("etcd-peer.sock").display()))
        .arg(format!("--advertise-client-urls={nowhere}"))
        .arg(format!("--initial-advertise-peer-urls={nowhere}"))
        .arg(format!("--initial-cluster=localkube={nowhere}"));
    Daemon::start("etcd", run.path(), command)
}

fn etcd_socket(run: &RunDir) -> String {
    format!("unix://{}", run.path().join("etcd.sock").display())
}

fn start_apiserver(
    run: &RunDir,
    cache: &Cache,
    options: &Options,
    addresses: &Addresses,
    authority: &Authority,
    endpoint: Endpoint,
) -> Result<Daemon> {
    let mut names: Vec<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
            .map(str::to_owned)
            .to_vec();
    names.extend([endpoint.address.to_string(), addresses.first_service.to_string()]);
    let serving = authority.server(run, "apiserver", &names)?;
    let to_kubelet = Subject { user: "kube-apiserver-kubelet-client", group: Some("system:masters") };
    let to_kubelet = authority.client(run, "apiserver-kubelet-client", &to_kubelet)?;
    let mut command = bound_command(cache.binary(Tool::Apiserver)?);
    let mut flag = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
        command.arg(format!("--{name}")).arg(value);
    };
    flag("etcd-servers", &etcd_socket(run));
    flag("bind-address", &endpoint.address.to_string());
    flag("advertise-address", &endpoint.address.to_string());
    flag("secure-port", &endpoint.port.to_string());
    flag("tls-cert-file", &serving.certificate);
    flag("tls-private-key-file", &serving.key);
    flag("client-ca-file", &authority.path("ca.crt"));
    flag("service-account-issuer", &"https://kubernetes.default.svc");
    flag("service-account-key-file", &authority.path("service-accounts.pub"));
    flag("service-account-signing-key-file", &authority.path("service-accounts.key"));
    flag("service-cluster-ip-range", &addresses.services);
    flag("authorization-mode", &"Node,RBAC");
    flag("enable-admission-plugins", &"NodeRestriction");
    flag("kubelet-client-certificate", &to_kubelet.certificate);
    flag("kubelet-client-key", &to_kubelet.key);
    flag("kubelet-certificate-authority", &authority.path("ca.crt"));
    flag("kubelet-preferred-address-types", &"InternalIP");
    if options.audit {
        flag("audit-policy-file", &run.file("audit-policy.yaml", AUDIT_POLICY)?);
        flag("audit-log-path", &run.path().join(AUDIT_LOG));
        // Requests are counted in one file: by default the log is rotated every 100 MB.
        flag("audit-log-maxsize", &"100000");
    }
    command.args(["--permit-port-sharing=true", "--allow-privileged=true", "--profiling=false"]);
    // Memory is cheaper here than CPU time, a fifth of which went into garbage collection. The limit is there because
    // newly allocated memory costs time too, and with 5,000 pods the heap would grow to eight gigabytes.
    command.env("GOGC", "800").env("GOMEMLIMIT", "6GiB");
    Daemon::start("kube-apiserver", run.path(), command)
}

/// Logs all requests except those of the fake nodes; the operator's writes of pods and HookRuns with their bodies.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [fake-nodes]
- level: Request
  users: ['system:serviceaccount:bcs-system:gameplane']
  verbs: [patch, delete]
  resources: [{group: '', resources: [pods, pods/status]}]
- level: Request
  users: ['system:serviceaccount:bcs-system:gameplane']
  verbs: [create, patch, delete]
  resources: [{group: tkex.tencent.com, resources: [hookruns, hookruns/status]}]
- level: Metadata
";

/// Where the audit log is, inside the run's folder.
pub(crate) const AUDIT_LOG: &str = "logs/audit.log";

/// Raises client-go's default rate limits, which would be the bottleneck on a small cluster.
const FAST: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=10000"];

fn start_controller_manager(run: &RunDir, cache: &Cache, plane: &ControlPlane, pace: Pace) -> Result<Daemon> {
    let subject = Subject { user: "system:kube-controller-manager", group: None };
    let kubeconfig = plane.kubeconfig_for(run, "controller-manager", &subject)?;
    let pki = |name: &str| plane.authority.path(name).display().to_string();
    let mut command = bound_command(cache.binary(Tool::ControllerManager)?);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--service-account-private-key-file={}", pki("service-accounts.key")))
        .arg(format!("--root-ca-file={}", pki("ca.crt")))
        .arg(format!("--cluster-signing-cert-file={}", pki("ca.crt")))
        .arg(format!("--cluster-signing-key-file={}", pki("ca.key")))
        // By default it would create a folder on the host.
        .arg(format!("--flex-volume-plugin-dir={}", run.path().join("volume-plugins").display()))
        .args(["--use-service-account-credentials=true", "--leader-elect=false", "--secure-port=0", "--profiling=false"]);
    match pace {
        Pace::Shipped => {}
        Pace::Unlimited => drop(command.args(FAST)),
    }
    if let Some(grace) = plane.node_grace {
        command.arg(format!("--node-monitor-grace-period={}s", grace.as_secs()));
    }
    Daemon::start(CONTROLLER_MANAGER, run.path(), command)
}

fn start_scheduler(run: &RunDir, cache: &Cache, plane: &ControlPlane) -> Result<Daemon> {
    let subject = Subject { user: "system:kube-scheduler", group: None };
    let kubeconfig = plane.kubeconfig_for(run, "scheduler", &subject)?;
    let mut command = bound_command(cache.binary(Tool::Scheduler)?);
    command.arg("--kubeconfig").arg(kubeconfig).args(["--leader-elect=false", "--secure-port=0", "--profiling=false"]).args(FAST);
    Daemon::start("kube-scheduler", run.path(), command)
}
