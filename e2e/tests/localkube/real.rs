//! Real nodes: containers, networks, volumes and kubectl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::command::program;
use e2e::game_server::{ask, get, play};
use e2e::pod::{container, ip, is_ready, node_of, waits_for};
use e2e::{Place, Scene, Suite, run, until, until_answer, until_gone, until_pod_ready};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use localkube::{Image, game_image};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let real = Place::Real;
    suite.sharing(real, the_examples_commands_run);
    suite.sharing(real, the_example_manifest_works);
    suite.sharing(real, an_image_pushed_by_command_runs_under_any_registrys_name);
    suite.sharing(real, a_pod_lists_its_namespace_with_its_own_token);
    suite.sharing(real, a_cluster_ip_answers_from_a_pod_and_from_the_node);
    suite.sharing(real, pods_reach_each_other_across_nodes_by_name);
    suite.sharing(real, a_new_image_restarts_the_container_in_place);
    suite.sharing(real, latest_with_always_pulls_the_new_content);
    suite.sharing(real, a_missing_tag_fails_until_it_is_pushed);
    suite.sharing(real, shared_memory_survives_the_restart_of_one_container);
    suite.sharing(real, a_claims_data_survives_its_pod);
    suite.sharing(real, kubectl_exec_logs_and_port_forward_work);
    suite.sharing(real, kubectl_debug_adds_an_ephemeral_container);
    suite.sharing(real, a_readiness_probe_decides);
    suite.sharing(real, a_server_drains_before_its_pod_goes);
}

/// An image with kubectl, which is also an HTTP client for any server: `kubectl get --raw`.
const TOOLS: &str = "tools:1";

fn push_tools(scene: &Scene) -> Result<()> {
    let kubectl = scene.cluster().programs().join("kubectl");
    scene.cluster().push_image(TOOLS, &Image::new().program("/kubectl", &kubectl)?)?;
    Ok(())
}

/// A pod in which commands can be run.
fn tools_pod(scene: &Scene, name: &str, with: &Value) -> Result<()> {
    push_tools(scene)?;
    // kubectl proxy is the program in the image that keeps running.
    let container = json!([{ "name": "game", "image": TOOLS, "command": ["/kubectl", "proxy", "--port=8001"] }]);
    let mut spec = json!({ "containers": container, "terminationGracePeriodSeconds": 1 });
    if let (Some(spec), Some(with)) = (spec.as_object_mut(), with.as_object()) {
        spec.extend(with.clone());
    }
    scene.pod(name, TOOLS, &json!({ "spec": spec }))
}

/// Fetches a path from a server, from inside a tools pod.
fn fetch_from_pod(scene: &Scene, pod: &str, server: &str, path: &str) -> Result<String> {
    scene.kubectl(&["exec", pod, "--", "/kubectl", &format!("--server=http://{server}"), "get", "--raw", path])
}

fn restarts(pod: &Pod) -> i32 {
    container(pod, "game").map_or(-1, |status| status.restart_count)
}

/// A pod with a readiness probe of its game server.
fn game_pod(scene: &Scene, name: &str, image: &str, with: &Value) -> Result<()> {
    let container = json!([{
        "name": "game", "image": image,
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8000 }, "periodSeconds": 1 },
    }]);
    let mut spec = json!({ "containers": container });
    if let (Some(spec), Some(with)) = (spec.as_object_mut(), with.as_object()) {
        spec.extend(with.clone());
    }
    scene.pod(name, image, &json!({ "spec": spec }))
}

async fn the_examples_commands_run(scene: Arc<Scene>) -> Result<()> {
    let python = json!([{
        "name": "game", "image": "python:3.5", "imagePullPolicy": "IfNotPresent",
        "command": ["python"], "args": ["-m", "http.server", "8000"], "ports": [{ "name": "http", "containerPort": 8000 }],
        "readinessProbe": { "tcpSocket": { "port": 8000 }, "periodSeconds": 1 },
    }]);
    scene.pod("python", "python:3.5", &json!({ "spec": { "containers": python } }))?;
    game_pod(&scene, "main", "main:v2", &json!({}))?;
    let pods = scene.pods();
    let answers = [("python", "3.5"), ("main", "v2")];
    for (name, version) in answers {
        let pod = until_pod_ready(&pods, name).await?;
        let answer = get(&pod, "/version")?;
        ensure!(answer == version, "{name} answers {answer:?}");
    }
    Ok(())
}

async fn the_example_manifest_works(scene: Arc<Scene>) -> Result<()> {
    scene.apply_file("examples/game-server/deployment.yaml")?;
    scene.kubectl(&["rollout", "status", "deployment/game", "--timeout=120s"])?;
    tools_pod(&scene, "caller", &json!({}))?;
    until_pod_ready(&scene.pods(), "caller").await?;
    until_answer("v1", || fetch_from_pod(&scene, "caller", "game", "/version")).await
}

async fn an_image_pushed_by_command_runs_under_any_registrys_name(scene: Arc<Scene>) -> Result<()> {
    let name = "registry.example.com/team/game:v7";
    let mut command = Command::new(program()?);
    command.env("LOCALKUBE_DIR", scene.cluster().folder());
    run(command.args(["images", "push", name]), "")?;
    let mut list = Command::new(program()?);
    let names = run(list.env("LOCALKUBE_DIR", scene.cluster().folder()).arg("images"), "")?;
    ensure!(names.lines().any(|line| line == "team/game:v7"), "{names}");
    game_pod(&scene, "game", name, &json!({}))?;
    let pod = until_pod_ready(&scene.pods(), "game").await?;
    ensure!(get(&pod, "/version")? == "v7", "another version");
    Ok(())
}

async fn a_pod_lists_its_namespace_with_its_own_token(scene: Arc<Scene>) -> Result<()> {
    scene.kubectl(&["create", "role", "list", "--verb=list,get", "--resource=pods"])?;
    scene.kubectl(&["create", "rolebinding", "list", "--role=list", &format!("--serviceaccount={}:default", scene.namespace())])?;
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let by_name = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{ "name": "here", "cluster": { "server": "https://kubernetes.default", "certificate-authority": format!("{account}/ca.crt") } }],
        "users": [{ "name": "here", "user": { "tokenFile": format!("{account}/token") } }],
        "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "here", "namespace": scene.namespace() } }],
    });
    let config =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "by-name" }, "data": { "config": by_name.to_string() } });
    scene.apply(&config)?;
    let container = json!([{
        "name": "game", "image": TOOLS, "command": ["/kubectl", "proxy", "--port=8001"],
        "volumeMounts": [{ "name": "by-name", "mountPath": "/by-name" }],
    }]);
    tools_pod(
        &scene,
        "caller",
        &json!({ "containers": container, "volumes": [{ "name": "by-name", "configMap": { "name": "by-name" } }] }),
    )?;
    until_pod_ready(&scene.pods(), "caller").await?;
    // In a pod kubectl uses the mounted token and the Service's address; the name goes through DNS as well.
    let inside = |words: &[&str]| scene.kubectl(&[&["exec", "caller", "--", "/kubectl"], words].concat());
    let list = inside(&["get", "pods", "-o", "name"])?;
    ensure!(list.trim() == "pod/caller", "{list}");
    let refused = inside(&["get", "secrets"]).err().context("it may read secrets")?;
    ensure!(refused.to_string().contains("cannot list resource \"secrets\""), "{refused:#}");
    let list = inside(&["--kubeconfig=/by-name/config", "get", "pods", "-o", "name"])?;
    ensure!(list.trim() == "pod/caller", "{list}");
    Ok(())
}

/// A server and a Service `game` in front of it.
async fn served(scene: &Scene, node: &str) -> Result<String> {
    game_pod(scene, "game", "main:v1", &json!({ "nodeName": node }))?;
    until_pod_ready(&scene.pods(), "game").await?;
    scene.kubectl(&["expose", "pod", "game", "--port=80", "--target-port=8000"])?;
    let services: Api<Service> = scene.api();
    services.get("game").await?.spec.and_then(|spec| spec.cluster_ip).context("no cluster IP")
}

async fn a_cluster_ip_answers_from_a_pod_and_from_the_node(scene: Arc<Scene>) -> Result<()> {
    let address = served(&scene, "real-1").await?;
    // From the node of the server, and from the other one.
    for node in scene.cluster().real_nodes() {
        let name = format!("caller-{}", node.name());
        tools_pod(&scene, &name, &json!({ "nodeName": node.name() }))?;
        until_pod_ready(&scene.pods(), &name).await?;
        until_answer("v1", || fetch_from_pod(&scene, &name, &address, "/version")).await?;
        let mut kubectl = Command::new(scene.cluster().programs().join("kubectl"));
        kubectl.args([&format!("--server=http://{address}"), "get", "--raw", "/version"]);
        until_answer("v1", || run(&mut node.in_network(&kubectl), "")).await.with_context(|| format!("from {}", node.name()))?;
    }
    Ok(())
}

async fn pods_reach_each_other_across_nodes_by_name(scene: Arc<Scene>) -> Result<()> {
    served(&scene, "real-1").await?;
    tools_pod(&scene, "caller", &json!({ "nodeName": "real-2" }))?;
    until_pod_ready(&scene.pods(), "caller").await?;
    for name in ["game", &format!("game.{}.svc.cluster.local", scene.namespace())] {
        until_answer("v1", || fetch_from_pod(&scene, "caller", name, "/version")).await?;
    }
    Ok(())
}

async fn a_new_image_restarts_the_container_in_place(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "main:v1", &json!({}))?;
    let pods = scene.pods();
    let before = until_pod_ready(&pods, "game").await?;
    scene.set_image("game", "game", "main:v2").await?;
    until(&pods, "game", "restarted once", |pod| pod.is_some_and(|pod| restarts(pod) == 1)).await?;
    let after = until_pod_ready(&pods, "game").await?;
    ensure!(before.uid() == after.uid() && ip(&before)? == ip(&after)?, "another pod or address");
    ensure!(get(&after, "/version")? == "v2", "the old version still answers");
    ensure!(container(&after, "game").is_some_and(|status| status.image.ends_with("main:v2")), "{:?}", after.status);
    Ok(())
}

async fn latest_with_always_pulls_the_new_content(scene: Arc<Scene>) -> Result<()> {
    let cluster = scene.cluster();
    cluster.push_image("moving:latest", &game_image("first")?)?;
    game_pod(&scene, "one", "moving:latest", &json!({ "nodeName": "real-1" }))?;
    let pods = scene.pods();
    let one = until_pod_ready(&pods, "one").await?;
    ensure!(get(&one, "/version")? == "first", "not the first content");
    cluster.push_image("moving:latest", &game_image("second")?)?;
    game_pod(&scene, "two", "moving:latest", &json!({ "nodeName": "real-1" }))?;
    let two = until_pod_ready(&pods, "two").await?;
    ensure!(get(&two, "/version")? == "second", "the old content was used");
    ensure!(get(&one, "/version")? == "first", "a running pod changed");
    let id = |pod: &Pod| container(pod, "game").map(|status| status.image_id.clone());
    ensure!(id(&one) != id(&two), "the same image id");
    Ok(())
}

async fn a_missing_tag_fails_until_it_is_pushed(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "late:v9", &json!({}))?;
    let pods = scene.pods();
    let reason = |pod: &Pod| waits_for(pod, "game").is_some_and(|reason| ["ErrImagePull", "ImagePullBackOff"].contains(&reason));
    let failing = |pod: Option<&Pod>| pod.is_some_and(reason);
    until(&pods, "game", "ErrImagePull", failing).await?;
    scene.cluster().push_image("late:v9", &game_image("v9")?)?;
    let pod = until_pod_ready(&pods, "game").await?;
    ensure!(get(&pod, "/version")? == "v9", "another version");
    ensure!(restarts(&pod) == 0, "a pull is not a restart");
    Ok(())
}

async fn shared_memory_survives_the_restart_of_one_container(scene: Arc<Scene>) -> Result<()> {
    let port = |number: u16| json!([{ "name": "PORT", "value": number.to_string() }]);
    let containers = json!([
        { "name": "game", "image": "main:v1", "env": port(8000), "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8000 }, "periodSeconds": 1 } },
        { "name": "other", "image": "main:v1", "env": port(8001), "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8001 }, "periodSeconds": 1 } },
    ]);
    scene.pod("pair", "main:v1", &json!({ "spec": { "containers": containers } }))?;
    let pods = scene.pods();
    let pod = until_pod_ready(&pods, "pair").await?;
    ask(&pod, "PUT /shm/score HTTP/1.1\r\nContent-Length: 4\r\n\r\n1234")?;
    let other = scene.kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{}/pods/pair:8001/proxy/shm/score", scene.namespace())])?;
    ensure!(other == "1234", "the other container reads {other:?}");
    scene.set_image("pair", "game", "main:v2").await?;
    until(&pods, "pair", "restarted once", |pod| pod.is_some_and(|pod| restarts(pod) == 1)).await?;
    let pod = until_pod_ready(&pods, "pair").await?;
    ensure!(get(&pod, "/version")? == "v2" && get(&pod, "/shm/score")? == "1234", "lost in the restart");
    ensure!(container(&pod, "other").is_some_and(|status| status.restart_count == 0), "the other container restarted");
    Ok(())
}

async fn a_claims_data_survives_its_pod(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }))?;
    let container = json!([{
        "name": "game", "image": "main:v1", "env": [{ "name": "GAME_SHM", "value": "/data" }],
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8000 }, "periodSeconds": 1 },
    }]);
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    let with = json!({ "spec": { "containers": container, "volumes": volumes } });
    let pods = scene.pods();
    scene.pod("keeper", "main:v1", &with)?;
    let pod = until_pod_ready(&pods, "keeper").await?;
    let node = node_of(&pod)?;
    ask(&pod, "PUT /shm/save HTTP/1.1\r\nContent-Length: 5\r\n\r\nlevel")?;
    pods.delete("keeper", &DeleteParams::default()).await?;
    until_gone(&pods, "keeper").await?;
    scene.pod("keeper", "main:v1", &with)?;
    let again = until_pod_ready(&pods, "keeper").await?;
    ensure!(again.uid() != pod.uid() && get(&again, "/shm/save")? == "level", "the data is gone");
    ensure!(node_of(&again)? == node, "the pod left its volume's node");
    // The volume is deleted with its claim.
    let claims: Api<PersistentVolumeClaim> = scene.api();
    let volume = claims.get("data").await?.spec.and_then(|spec| spec.volume_name).context("not bound")?;
    pods.delete("keeper", &DeleteParams::default()).await?;
    claims.delete("data", &DeleteParams::default()).await?;
    let all: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(scene.client());
    let folder = scene.cluster().folder().join(node).join("lib/localkube-volumes").join(&volume);
    ensure!(folder.join("save").exists(), "{} is not where the data is", folder.display());
    until_gone(&all, &volume).await?;
    ensure!(!folder.exists(), "{} is left", folder.display());
    Ok(())
}

async fn kubectl_exec_logs_and_port_forward_work(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "main:v1", &json!({}))?;
    until_pod_ready(&scene.pods(), "game").await?;
    let help = scene.kubectl(&["exec", "game", "--", "/main", "--help"])?;
    ensure!(help.starts_with("A stand-in game server"), "{help}");
    let log = scene.kubectl(&["logs", "game"])?;
    ensure!(log.contains("serving version v1 on port 8000"), "{log}");
    let mut forward = scene.kubectl_command();
    let mut child = forward.args(["port-forward", "pod/game", ":8000"]).stdout(Stdio::piped()).spawn()?;
    // Its output is kept open: kubectl exits when it can no longer print what it forwards.
    let mut said = BufReader::new(child.stdout.take().context("no output")?).lines();
    let line = said.next().context("no line")??;
    let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).context(line.clone())?;
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse::<u16>()?))?;
    stream.write_all(b"GET /version HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    child.kill()?;
    child.wait()?;
    drop(said);
    ensure!(answer.ends_with("v1"), "{answer}");
    Ok(())
}

async fn kubectl_debug_adds_an_ephemeral_container(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "main:v1", &json!({}))?;
    let pods = scene.pods();
    let before = until_pod_ready(&pods, "game").await?;
    let words = ["debug", "game", "--image=main:v2", "--container=debug", "--target=game", "--env=PORT=8002", "--", "/main"];
    scene.kubectl(&words)?;
    let running = |pod: Option<&Pod>| {
        let state = pod.and_then(|pod| container(pod, "debug")).and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    };
    let after = until(&pods, "game", "ephemeral container running", running).await?.context("vanished")?;
    ensure!(before.uid() == after.uid() && restarts(&after) == 0, "the game was disturbed");
    let log = scene.kubectl(&["logs", "game", "-c", "debug"])?;
    ensure!(log.contains("version v2"), "{log}");
    Ok(())
}

async fn a_readiness_probe_decides(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "main:v1", &json!({}))?;
    let pods = scene.pods();
    let pod = until_pod_ready(&pods, "game").await?;
    ask(&pod, "PUT /ready/no HTTP/1.1\r\n\r\n")?;
    until(&pods, "game", "not Ready", |pod| pod.is_some_and(|pod| !is_ready(pod))).await?;
    ask(&pod, "PUT /ready/yes HTTP/1.1\r\n\r\n")?;
    let pod = until_pod_ready(&pods, "game").await?;
    ensure!(restarts(&pod) == 0, "not ready is no reason to restart");
    Ok(())
}

async fn a_server_drains_before_its_pod_goes(scene: Arc<Scene>) -> Result<()> {
    game_pod(&scene, "game", "main:v1", &json!({ "terminationGracePeriodSeconds": 60 }))?;
    let pods = scene.pods();
    let pod = until_pod_ready(&pods, "game").await?;
    let player = play(&pod)?;
    pods.delete("game", &DeleteParams::default()).await?;
    until(&pods, "game", "not Ready while it drains", |pod| {
        pod.is_some_and(|pod| container(pod, "game").is_some_and(|status| !status.ready))
    })
    .await?;
    let state = get(&pod, "/")?;
    ensure!(state.contains("\"draining\":true") && state.contains("\"sessions\":1") && state.contains("\"sigterm\":1"), "{state}");
    drop(player);
    until_gone(&pods, "game").await
}
