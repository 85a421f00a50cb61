//! The `exec` provider: runs a command in a container of the pod `PodName`.

use api::tkex::Exec;
use kube::api::AttachParams;
use kube::client::UpgradeConnectionError;
use planner::hookrun::arguments::{Place, fill};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::account::Account;
use super::http::{MAX_ANSWER_BYTES, NoAnswer};
use super::names::{checked, is_label};
use super::web::timeout;
use super::{Answer, Asker, Measurement, subject};

const TIMEOUT: u32 = 10;

pub(crate) async fn measure(asker: &Asker, measurement: &Measurement, spec: &Exec) -> Result<Answer, NoAnswer> {
    let limit = timeout(spec.timeout_seconds, TIMEOUT);
    let ran = tokio::time::timeout(limit, run(asker, measurement, spec)).await;
    ran.unwrap_or_else(|_| Err(NoAnswer::because(format!("the command did not end within {} s", limit.as_secs()))))
}

async fn run(asker: &Asker, measurement: &Measurement, spec: &Exec) -> Result<Answer, NoAnswer> {
    let account = Account::of(asker, measurement, spec.service_account_name.as_ref())?;
    let pod = subject::pod_name(measurement)?;
    let filled = |word: &String| fill(word, &measurement.arguments, Place::Plain).map_err(|problem| NoAnswer::because(problem.0));
    let command: Vec<String> = spec.command.iter().map(filled).collect::<Result<_, _>>()?;
    let mut params = AttachParams::default().stdin(false).stdout(true).stderr(true);
    if let Some(container) = spec.container.as_deref().filter(|container| !container.is_empty()) {
        params = params.container(checked("container", container, "a container", is_label)?);
    }
    subject::check(asker, measurement, pod).await?;
    let mut process = account.pods().exec(pod, command, &params).await.map_err(|error| refused(&account, pod, &error))?;
    let (out, err) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let (out, err) = tokio::join!(text(out), text(err));
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let status = status.ok_or_else(|| NoAnswer::because("the command ended without a word"))?;
    let out = out?.trim_end().to_owned();
    if status.status.as_deref() == Some("Success") {
        return Ok(Answer::Value(Value::String(out)));
    }
    let said = [status.message.unwrap_or_default(), err?.trim_end().to_owned()].join(": ");
    let message = said.trim_end_matches(": ").to_owned();
    // The command failed by its own exit code; with any other reason it did not run.
    if status.reason.as_deref() == Some("NonZeroExitCode") {
        Ok(Answer::Refused { value: Some(out), message })
    } else {
        Err(NoAnswer::because(message))
    }
}

/// The error has only the HTTP status of the failed upgrade, without a message of the API server.
fn refused(account: &Account, pod: &str, error: &kube::Error) -> NoAnswer {
    let code = if let kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) = error { code.as_u16() } else { 0 };
    NoAnswer::because(match code {
        404 => format!("there is no pod {pod}"),
        401 | 403 => format!(
            "not allowed in pod {pod}: a Role of this namespace must allow the operator to impersonate {account}, and that account to create pods/exec"
        ),
        _ => format!("the command cannot be run in pod {pod}: {error}"),
    })
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> Result<String, NoAnswer> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let most = u64::try_from(MAX_ANSWER_BYTES).unwrap_or(u64::MAX);
        stream.take(most).read_to_end(&mut bytes).await.map_err(|error| NoAnswer::because(format!("the output broke off: {error}")))?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
