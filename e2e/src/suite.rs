//! All tests, and the clusters they share.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use localkube::{Cluster, KubeVersion, OperatorOptions, Operators, Options, Progress};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OnceCell, RwLock};

use crate::scene::Scene;

/// The shared clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Fake nodes, and the operator.
    Fake,
    /// Two real nodes, and the operator. Root only.
    Real,
}

#[derive(Debug, Default)]
struct Site {
    // Dropped in this order: the operator before its cluster.
    operators: Mutex<Option<Operators>>,
    cluster: OnceCell<Arc<Cluster>>,
    /// Held for reading by a test that shares the cluster, for writing by one that disturbs it.
    access: RwLock<()>,
}

/// How a test uses a shared cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Side by side with others.
    Sharing,
    /// With the cluster to itself.
    Disturbing,
    /// With the cluster to itself, and without the operator.
    Bare,
}

/// Everything that outlives a single test.
#[derive(Debug)]
pub struct Suite {
    runtime: Runtime,
    kube: KubeVersion,
    fake: Site,
    real: Site,
    failures: PathBuf,
    trials: std::sync::Mutex<Vec<Trial>>,
    skipped: std::sync::Mutex<Vec<String>>,
}

/// What a test has started for itself. It is kept until the test has ended and, if the test failed, its evidence is saved.
type Own = std::sync::Mutex<(Vec<Arc<Cluster>>, Vec<tokio::process::Child>)>;

tokio::task_local! {
    static OWN: Own;
}

/// How long a node may be silent in these tests before it is Unknown: three heartbeats, so that a machine that stalls does
/// not lose its nodes.
const NODE_GRACE: Duration = Duration::from_secs(30);

/// How long a node may be Unknown in these tests before it counts as lost: as long as by default with SOAK=1.
#[must_use]
pub fn node_silence() -> Duration {
    Duration::from_secs(if std::env::var_os("SOAK").is_some() { 300 } else { 20 })
}

/// The name of a test: its function's, with its module.
fn name_of<F>() -> &'static str {
    let whole = std::any::type_name::<F>();
    whole.split_once("::").map_or(whole, |(_, name)| name)
}

impl Suite {
    /// A suite whose failed tests leave a folder each in `failures`. KUBE chooses the Kubernetes version.
    pub fn new(failures: PathBuf) -> Result<Arc<Self>> {
        let kube = std::env::var("KUBE").ok().filter(|version| !version.is_empty());
        Ok(Arc::new(Self {
            runtime: Runtime::new()?,
            kube: kube.map(|version| version.parse()).transpose()?.unwrap_or_default(),
            fake: Site::default(),
            real: Site::default(),
            failures,
            trials: std::sync::Mutex::default(),
            skipped: std::sync::Mutex::default(),
        }))
    }

    /// The Kubernetes version under test.
    #[must_use]
    pub fn kube(&self) -> KubeVersion {
        self.kube
    }

    fn site(&self, place: Place) -> &Site {
        match place {
            Place::Fake => &self.fake,
            Place::Real => &self.real,
        }
    }

    pub(crate) async fn cluster(&self, place: Place) -> Result<Arc<Cluster>> {
        let options = Options {
            fake_nodes: if place == Place::Fake { 5 } else { 0 },
            real_nodes: if place == Place::Real { 2 } else { 0 },
            kube: self.kube,
            audit: true,
            node_grace: Some(NODE_GRACE),
            progress: Progress::to_stderr(),
            ..Options::default()
        };
        let start = || async { Cluster::start(&options).await.map(Arc::new) };
        let site = self.site(place);
        let cluster = site.cluster.get_or_try_init(start).await.with_context(|| format!("cannot start the {place:?} cluster"))?;
        Ok(Arc::clone(cluster))
    }

    /// Installs and starts the operator on a shared cluster if it is wanted there, otherwise stops and uninstalls it.
    async fn operate(&self, place: Place, cluster: &Cluster, wanted: bool) -> Result<()> {
        let mut operators = self.site(place).operators.lock().await;
        match operators.take() {
            Some(running) if wanted => *operators = Some(running),
            None if wanted => {
                cluster.install_operator()?;
                let args = vec![format!("--node-silence={}s", node_silence().as_secs()).into()];
                *operators = Some(cluster.start_operators(&OperatorOptions { args, ..OperatorOptions::default() }).await?);
            }
            Some(running) => {
                running.stop().await;
                // Its admission policies would apply to another operator, too.
                let files = ["06-hook-approvals.yaml", "05-pod-protection.yaml", "03-rbac.yaml", "02-namespace.yaml", "01-resources.yaml"];
                for file in files {
                    let path = crate::scene::root().join("deploy").join(file);
                    crate::scene::run(cluster.kubectl().args(["delete", "--wait", "-f"]).arg(path), "")?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// A test that needs no shared cluster.
    pub fn alone<F, Fut>(self: &Arc<Self>, test: F)
    where
        F: FnOnce(Arc<Suite>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.named(name_of::<F>(), test);
    }

    /// The same with an explicit name, for closures.
    pub fn named<F, Fut>(self: &Arc<Self>, name: &str, test: F)
    where
        F: FnOnce(Arc<Suite>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        let (suite, title) = (Arc::clone(self), name.to_owned());
        self.add(Trial::test(name, move || {
            let run = OWN.scope(std::sync::Mutex::default(), async {
                let result = test(Arc::clone(&suite)).await;
                let own = OWN.with(|own| std::mem::take(&mut *own.lock().unwrap_or_else(std::sync::PoisonError::into_inner)));
                for (number, cluster) in own.0.iter().enumerate().filter(|_| result.is_err()) {
                    let folder = suite.evidence(&format!("{title}-{number}"));
                    suite.tell(&title, &folder, crate::scene::describe(cluster, &["--all-namespaces"], &folder));
                }
                result
            });
            suite.runtime.block_on(run).map_err(|error| failed(&error))
        }));
    }

    /// A cluster for one test, with fake nodes and everything that the operator needs, but without the operator.
    pub async fn own_cluster(&self) -> Result<Arc<Cluster>> {
        let options = Options { fake_nodes: 3, kube: self.kube, audit: true, node_grace: Some(NODE_GRACE), ..Options::default() };
        let cluster = Arc::new(Cluster::start(&options).await?);
        let keep = |own: &Own| own.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0.push(Arc::clone(&cluster));
        OWN.try_with(keep).context("a cluster of a test's own belongs to a test that needs no shared one")?;
        cluster.install_operator()?;
        Ok(cluster)
    }

    /// Keeps a process as long as a test's own cluster.
    pub fn keep(child: tokio::process::Child) -> Result<()> {
        let keep = |own: &Own| own.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1.push(child);
        OWN.try_with(keep).context("a process of a test's own belongs to a test that needs no shared cluster")
    }

    /// A test on a shared cluster, side by side with others.
    pub fn sharing<F, Fut>(self: &Arc<Self>, place: Place, test: F)
    where
        F: FnOnce(Arc<Scene>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.on_cluster(place, Manner::Sharing, test);
    }

    /// A test that has a shared cluster to itself while it runs.
    pub fn disturbing<F, Fut>(self: &Arc<Self>, place: Place, test: F)
    where
        F: FnOnce(Arc<Scene>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.on_cluster(place, Manner::Disturbing, test);
    }

    /// The same, without the operator.
    pub fn bare<F, Fut>(self: &Arc<Self>, place: Place, test: F)
    where
        F: FnOnce(Arc<Scene>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.on_cluster(place, Manner::Bare, test);
    }

    fn on_cluster<F, Fut>(self: &Arc<Self>, place: Place, manner: Manner, test: F)
    where
        F: FnOnce(Arc<Scene>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        let name = name_of::<F>();
        if place == Place::Real && !is_root() {
            self.skip(name);
            return;
        }
        let suite = Arc::clone(self);
        let title = name.to_owned();
        self.add(Trial::test(name, move || {
            let run = async {
                let access = &suite.site(place).access;
                let shares = manner == Manner::Sharing;
                let (_shared, _exclusive) = if shares { (Some(access.read().await), None) } else { (None, Some(access.write().await)) };
                let cluster = suite.cluster(place).await?;
                suite.operate(place, &cluster, manner != Manner::Bare).await.context("the operator")?;
                let scene = Arc::new(Scene::open(cluster, &title).await?);
                let result = test(Arc::clone(&scene)).await;
                match &result {
                    Ok(()) => scene.close().await?,
                    Err(_) => suite.keep_evidence(&scene, &title),
                }
                result
            };
            suite.runtime.block_on(run).map_err(|error| failed(&error))
        }));
    }

    /// The names of all tests added so far.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let trials = self.trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        trials.iter().map(|trial| trial.name().to_owned()).collect()
    }

    /// Adds a test that cannot run on this machine, so that the summary names it.
    pub fn skip(&self, name: &str) {
        self.add(Trial::test(name, || Ok(())).with_ignored_flag(true));
        self.skipped.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name.to_owned());
    }

    fn evidence(&self, title: &str) -> PathBuf {
        self.failures.join(title.replace("::", "-"))
    }

    fn keep_evidence(&self, scene: &Scene, title: &str) {
        let folder = self.evidence(title);
        self.tell(title, &folder, scene.describe(&folder));
    }

    fn tell(&self, title: &str, folder: &std::path::Path, kept: Result<()>) {
        match kept {
            Ok(()) => eprintln!("{title} failed; objects, events and logs are in {}", folder.display()),
            Err(error) => eprintln!("{title} failed; its evidence could not be kept: {error:#}"),
        }
    }

    fn add(&self, trial: Trial) {
        self.trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(trial);
    }

    /// Runs every test that was added, stops the clusters and prints which tests could not run here.
    #[must_use]
    pub fn run(self: Arc<Self>) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // Tests mostly wait, so more threads than processors are worthwhile.
        arguments.test_threads.get_or_insert(8);
        let trials = std::mem::take(&mut *self.trials.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let conclusion = libtest_mimic::run(&arguments, trials);
        let skipped = std::mem::take(&mut *self.skipped.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        if !skipped.is_empty() && !arguments.list {
            eprintln!("NOT RUN, because real nodes need root: {}", skipped.join(", "));
        }
        drop(self);
        conclusion.exit_code()
    }
}

/// Whether real nodes can run here.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

fn failed(error: &anyhow::Error) -> Failed {
    format!("{error:#}").into()
}
