//! Sends one write, and reads its result from the API server's answer.

use planner::plan::{Action, PodPart};
use planner::request::{self, Subject, Verb};
use planner::workload::manifest::Owner;
use serde_json::Value;

use crate::client::{CallError, Patch, Server, Written, WrittenOwner};

/// What one write did.
pub(crate) enum Effect {
    /// It resulted in this resourceVersion.
    Wrote(u64),
    /// The object existed already, controlled by this owner, with this resourceVersion.
    Seen(u64),
    /// The object is gone.
    Gone,
    /// An object that this owner does not control has the name.
    NameTaken,
    /// The object that was observed is gone, and another may have its name.
    Replaced,
    /// The object has changed since it was observed: it is left alone, and the event of its change causes the next pass.
    Changed,
    /// A dry run succeeded, or a measurement was started, which reports when it ends.
    Started,
    /// An object of that name existed and is gone.
    Vanished,
    /// The workload itself is gone or being deleted: the plan is obsolete.
    Orphaned,
}

/// Whether the owner exists and is not being deleted, once that was asked: once in a plan.
pub(crate) type OwnerIsAlive = tokio::sync::OnceCell<bool>;

/// Sends the writes of one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    /// The API server, or its dry runs.
    pub(crate) server: &'a Server,
    /// The object.
    pub(crate) owner: &'a Owner,
    /// The path of the object.
    pub(crate) path: &'a str,
    /// Whether it is alive.
    pub(crate) owner_is_alive: &'a OwnerIsAlive,
}

impl Sender<'_> {
    /// Sends what an action asks for.
    pub(crate) async fn send(&self, action: &Action) -> Result<Effect, CallError> {
        let Self { server, owner, .. } = *self;
        let (Some(Subject { resource, name, uid }), Some(verb)) = (request::subject(owner, action), request::verb(owner, action)) else {
            // Not a write: there is only an event to report.
            return Ok(Effect::Wrote(0));
        };
        let collection = resource.collection(&owner.namespace);
        let path = collection.as_ref().map_or_else(|| self.path.to_owned(), |all| format!("{all}/{name}"));
        match verb {
            Verb::Create(body) => self.create(&collection.unwrap_or_default(), &path, &body).await,
            Verb::Patch { strategic, part, body } => {
                let patch = if strategic { Patch::Strategic } else { Patch::Merge };
                change(server, &path, patch, part, &body).await
            }
            Verb::Adopt(body) => {
                if !*self.owner_is_alive.get_or_try_init(|| self.is_alive()).await? {
                    return Ok(Effect::Orphaned);
                }
                change(server, &path, Patch::Strategic, PodPart::Main, &body).await
            }
            Verb::Delete { version } => gone(server.delete(&path, uid, version).await),
        }
    }

    /// Creates an object. One of that name may exist already.
    async fn create(&self, collection: &str, path: &str, body: &Value) -> Result<Effect, CallError> {
        match self.server.create(collection, body).await {
            Err(error) if error.is_already_there() => self.whose(path).await,
            written => Ok(Effect::Wrote(written?.metadata.version())),
        }
    }

    /// An object of that name exists: this owner controls it and the cache has not seen it yet, or it has another controller or none.
    async fn whose(&self, path: &str) -> Result<Effect, CallError> {
        let found: Written = match self.server.get(path).await {
            Err(error) if error.is_not_found() => return Ok(Effect::Vanished),
            found => found?,
        };
        let is_owner = |one: &WrittenOwner| one.uid == self.owner.uid && one.name == self.owner.name && one.kind == self.owner.kind;
        let ours = found.metadata.owner_references.iter().any(|one| one.controller == Some(true) && is_owner(one));
        Ok(if ours { Effect::Seen(found.metadata.version()) } else { Effect::NameTaken })
    }

    /// Whether the owner still exists and is not being deleted: an owner that is being deleted adopts nothing.
    async fn is_alive(&self) -> Result<bool, CallError> {
        match self.server.get::<Written>(self.path).await {
            Ok(found) => Ok(found.metadata.uid == self.owner.uid && found.metadata.deletion_timestamp.is_none()),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The API server does not serve the requested subresource; the object itself may exist.
pub(crate) fn is_not_served(error: &CallError) -> bool {
    error.is_not_found() && error.message.contains("could not find the requested resource")
}

async fn change(server: &Server, path: &str, patch: Patch, part: PodPart, body: &Value) -> Result<Effect, CallError> {
    let part = match part {
        PodPart::Main => "",
        PodPart::Status => "/status",
        PodPart::Resize => "/resize",
    };
    match server.patch(&format!("{path}{part}"), patch, body).await {
        Ok(written) => Ok(Effect::Wrote(written.metadata.version())),
        // The API server does not serve this subresource; the object itself may exist.
        Err(error) if is_not_served(&error) => Err(error),
        Err(error) if error.is_not_found() || error.is_other_uid() => Ok(Effect::Replaced),
        Err(error) => Err(error),
    }
}

fn gone(result: Result<Written, CallError>) -> Result<Effect, CallError> {
    match result {
        Ok(written) if written.metadata.version() > 0 => Ok(Effect::Wrote(written.metadata.version())),
        Ok(_) => Ok(Effect::Gone),
        Err(error) if error.is_not_found() => Ok(Effect::Gone),
        Err(error) if error.is_other_uid() => Ok(Effect::Replaced),
        Err(error) if error.is_other_version() => Ok(Effect::Changed),
        Err(error) => Err(error),
    }
}
