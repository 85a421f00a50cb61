//! Bad input and unsuitable machines: one clear error line, the right exit code, nothing left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::Suite;
use e2e::command::{finish, localkube, processes_of, program};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(an_unknown_flag_is_refused);
    suite.alone(an_unknown_version_is_refused);
    suite.alone(a_missing_command_is_told_before_a_cluster_starts);
    suite.alone(a_taken_port_is_named);
    suite.alone(an_existing_kubeconfig_is_not_overwritten);
    suite.alone(no_go_is_told);
    suite.alone(an_old_go_is_told);
    suite.alone(a_damaged_or_half_built_binary_is_built_again);
    suite.alone(two_builders_wait_for_each_other);
    suite.alone(a_dead_part_ends_the_run_and_is_named);
    suite.alone(a_damaged_binary_is_named_when_it_fails);
    suite.alone(images_without_real_nodes_are_refused);
    suite.alone(real_nodes_without_root_are_refused);
    if rustix::process::geteuid().is_root() {
        suite.alone(a_missing_package_is_named_with_its_apt_line);
        suite.alone(a_full_disk_is_named);
    } else {
        suite.skip("localkube::input::a_missing_package_is_named_with_its_apt_line");
        suite.skip("localkube::input::a_full_disk_is_named");
    }
}

async fn an_unknown_flag_is_refused(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.args(["up", "--fake-node", "3"]);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(2), "exit code {:?}", ended.code);
    ensure!(ended.stderr.contains("unexpected argument '--fake-node'") && ended.stderr.contains("--fake-nodes"), "{}", ended.stderr);
    Ok(())
}

async fn an_unknown_version_is_refused(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.args(["up", "--kube", "1.12"]);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(2) && ended.stderr.contains("1.33, 1.35"), "{:?} {}", ended.code, ended.stderr);
    Ok(())
}

async fn a_missing_command_is_told_before_a_cluster_starts(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.args(["run", "--", "no-such-command-anywhere"]);
    let ended = finish(command).await?;
    ended.check(127, "no-such-command-anywhere: command not found")?;
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("not-a-program");
    fs::write(&file, "text")?;
    let mut command = localkube(&suite)?;
    command.args(["run", "--"]).arg(&file);
    let ended = finish(command).await?;
    ended.check(126, "cannot be executed")?;
    ensure!(!ended.stderr.contains("ready"), "a cluster was started: {}", ended.stderr);
    Ok(())
}

async fn a_taken_port_is_named(suite: Arc<Suite>) -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port().to_string();
    let mut command = localkube(&suite)?;
    command.args(["run", "--port", &port, "--", "true"]);
    finish(command).await?.check(125, &format!("port {port} on 127.0.0.1 is taken"))
}

async fn an_existing_kubeconfig_is_not_overwritten(suite: Arc<Suite>) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("config");
    fs::write(&file, "precious")?;
    let mut command = localkube(&suite)?;
    command.args(["up", "--kubeconfig"]).arg(&file);
    finish(command).await?.check(1, "exists and is not overwritten")?;
    ensure!(fs::read_to_string(&file)? == "precious", "overwritten");
    Ok(())
}

/// Links the given programs of this machine into `folder`, and returns it as a PATH.
fn narrow_path(folder: &Path, programs: &[&str]) -> Result<String> {
    for name in programs {
        let from = ["/usr/bin", "/bin"].iter().map(|place| Path::new(place).join(name)).find(|file| file.exists());
        std::os::unix::fs::symlink(from.with_context(|| format!("no {name}"))?, folder.join(name))?;
    }
    Ok(folder.display().to_string())
}

async fn no_go_is_told(suite: Arc<Suite>) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let mut command = localkube(&suite)?;
    command.args(["run", "--", "true"]).env("PATH", narrow_path(scratch.path(), &["true", "setpriv"])?);
    finish(command).await?.check(125, "Go is missing: install Go")
}

async fn an_old_go_is_told(suite: Arc<Suite>) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let path = narrow_path(scratch.path(), &["true", "setpriv", "sh"])?;
    let go = scratch.path().join("go");
    fs::write(&go, "#!/bin/sh\necho go1.19.8\n")?;
    fs::set_permissions(&go, fs::Permissions::from_mode(0o755))?;
    let mut command = localkube(&suite)?;
    command.args(["build", "etcd"]).env("PATH", path);
    finish(command).await?.check(1, "Go is too old: found 1.19.8, need 1.26")
}

pub(crate) async fn build_etcd(suite: &Suite, cache: &Path) -> Result<(String, String)> {
    let mut command = localkube(suite)?;
    command.args(["build", "etcd"]).env("LOCALKUBE_CACHE", cache);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(0), "{}", ended.stderr);
    Ok((ended.stdout.trim().to_owned(), ended.stderr))
}

async fn a_damaged_or_half_built_binary_is_built_again(suite: Arc<Suite>) -> Result<()> {
    let cache = tempfile::tempdir()?;
    let (binary, _) = build_etcd(&suite, cache.path()).await?;
    let (same, said) = build_etcd(&suite, cache.path()).await?;
    ensure!(same == binary && !said.contains("building"), "built twice: {said}");
    let whole = fs::read(&binary)?;
    fs::write(&binary, whole.get(..1000).context("too short")?)?;
    let (_, said) = build_etcd(&suite, cache.path()).await?;
    ensure!(said.contains("is damaged") && fs::read(&binary)?.len() == whole.len(), "not repaired: {said}");
    // A builder that was killed leaves an unfinished file and no binary.
    fs::rename(&binary, Path::new(&binary).with_file_name(".etcd.unfinished"))?;
    let (_, said) = build_etcd(&suite, cache.path()).await?;
    ensure!(said.contains("built etcd") && fs::read(&binary)?.len() == whole.len(), "not repaired: {said}");
    // Same size, other content: the doctor finds it.
    let mut wrong = whole;
    if let Some(byte) = wrong.get_mut(5000) {
        *byte ^= 1;
    }
    fs::write(&binary, wrong)?;
    let mut command = localkube(&suite)?;
    command.args(["doctor"]).env("LOCALKUBE_CACHE", cache.path());
    let ended = finish(command).await?;
    ensure!(ended.code == Some(1) && ended.stdout.contains("damaged: run `localkube build --again etcd`"), "{}", ended.stdout);
    Ok(())
}

async fn two_builders_wait_for_each_other(suite: Arc<Suite>) -> Result<()> {
    let cache = tempfile::tempdir()?;
    let (one, two) = tokio::try_join!(build_etcd(&suite, cache.path()), build_etcd(&suite, cache.path()))?;
    ensure!(one.0 == two.0, "two places: {} {}", one.0, two.0);
    let builds = [&one.1, &two.1].iter().filter(|said| said.contains("built etcd")).count();
    ensure!(builds == 1, "built {builds} times: {} {}", one.1, two.1);
    Ok(())
}

async fn a_dead_part_ends_the_run_and_is_named(suite: Arc<Suite>) -> Result<()> {
    // A folder of its own for its runs: only the logs of the last failure are kept.
    let runs = tempfile::tempdir()?;
    let mut command = localkube(&suite)?;
    command.env("LOCALKUBE_RUNS", runs.path());
    let script = "echo dir=$LOCALKUBE_DIR; kill -9 $(cat $LOCALKUBE_DIR/kube-apiserver.pid); sleep 600; true";
    command.args(["run", "--fake-nodes", "0", "--", "sh", "-c", script]);
    let ended = finish(command).await?;
    ended.check(125, "kube-apiserver stopped (signal: 9")?;
    let folder = ended.stdout.lines().find_map(|line| line.strip_prefix("dir=")).context("no folder")?;
    ensure!(processes_of(folder).is_empty() && !Path::new(folder).exists(), "something is left of {folder}");
    let log = Path::new(folder).with_file_name("localkube-last-failure").join("kube-apiserver.log");
    ensure!(ended.stderr.contains(&log.display().to_string()) && log.exists(), "no log is kept: {}", ended.stderr);
    Ok(())
}

async fn a_damaged_binary_is_named_when_it_fails(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.arg("build").args(["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"]);
    let built = finish(command).await?;
    // An etcd that exits at once, and one that hangs until the API server gives up.
    for content in ["", "#!/bin/sh\nexec sleep 300\n"] {
        let cache = tempfile::tempdir()?;
        for binary in built.stdout.lines().map(Path::new) {
            link_or_damage(cache.path(), binary, content)?;
        }
        let runs = tempfile::tempdir()?;
        let mut command = localkube(&suite)?;
        command.env("LOCALKUBE_CACHE", cache.path()).env("LOCALKUBE_RUNS", runs.path());
        command.args(["run", "--fake-nodes", "0", "--", "true"]);
        finish(command).await?.check(125, "etcd in the cache is damaged: run `localkube build --again etcd`")?;
    }
    Ok(())
}

/// The same layout in another cache: links to what was built; etcd is a file of the same size that starts with `content`.
fn link_or_damage(cache: &Path, binary: &Path, content: &str) -> Result<()> {
    let folder = binary.parent().and_then(Path::parent).and_then(Path::file_name).context("no folder")?;
    let name = binary.file_name().context("no name")?;
    let target = cache.join(folder).join("bin").join(name);
    fs::create_dir_all(target.parent().context("no folder")?)?;
    fs::copy(format!("{}.receipt", binary.display()), format!("{}.receipt", target.display()))?;
    if name != "etcd" {
        return Ok(std::os::unix::fs::symlink(binary, target)?);
    }
    let mut damaged = content.as_bytes().to_vec();
    damaged.resize(usize::try_from(fs::metadata(binary)?.len())?, 0);
    fs::write(&target, damaged)?;
    Ok(fs::set_permissions(target, fs::Permissions::from_mode(0o755))?)
}

async fn images_without_real_nodes_are_refused(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.args(["run", "--fake-nodes", "0", "--"]).arg(program()?).args(["images", "push", "game:v9"]);
    finish(command).await?.check(1, "images are for clusters with real nodes")
}

async fn real_nodes_without_root_are_refused(suite: Arc<Suite>) -> Result<()> {
    let runs = tempfile::tempdir()?;
    fs::set_permissions(runs.path(), fs::Permissions::from_mode(0o777))?;
    // Another user may not be able to read the program's folder, so it is copied.
    let copy = runs.path().join("localkube");
    fs::copy(program()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg("--").arg(&copy).args(["run", "--real-nodes", "1", "--", "true"]);
    command.env("LOCALKUBE_RUNS", runs.path()).current_dir("/").env("KUBE", suite.kube().minor());
    finish(command).await?.check(125, "real nodes need root")
}

/// Runs localkube in a mount namespace of its own, in which `script` has made mounts.
fn in_own_mounts(script: &str, words: &str) -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-ec", &format!("{script}; exec {} {words}", program()?.display())]);
    Ok(command)
}

async fn a_missing_package_is_named_with_its_apt_line(_suite: Arc<Suite>) -> Result<()> {
    let command = in_own_mounts("mount --bind /dev/null $(command -v docker-registry)", "run --real-nodes 1 -- true")?;
    finish(command).await?.check(125, "apt-get install --no-install-recommends docker-registry")
}

async fn a_full_disk_is_named(_suite: Arc<Suite>) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let small = format!("mount -t tmpfs -o size=8m tmpfs {}", scratch.path().display());
    let mut command = in_own_mounts(&small, "run -- true")?;
    command.env("LOCALKUBE_RUNS", scratch.path());
    finish(command).await?.check(125, "300 MiB are needed")?;
    let mut command = in_own_mounts(&small, "build etcd")?;
    command.env("LOCALKUBE_CACHE", scratch.path());
    finish(command).await?.check(1, "set LOCALKUBE_CACHE to a folder on another disk")
}
