//! What is learned from what became of a write.

use jiff::Timestamp;

use super::fallout::{identity, target, tried};
use super::group::{Group, Member};
use super::{Outcome, Refusals};
use crate::plan::Action;

impl Refusals {
    /// Learns what became of a write. Says whether it is the first of its kind to be refused.
    pub fn note(&mut self, action: &Action, outcome: &Outcome, now: Timestamp) -> bool {
        if self.groups.is_empty() && !matches!(outcome, Outcome::Refused { .. }) {
            return false;
        }
        let known = self.groups.len();
        let (inner, is_probe) = (tried(action), matches!(action, Action::Probe(_)));
        let identity = identity(inner);
        match outcome {
            Outcome::Refused { reason, message } => self.refuse(inner, reason, message, now),
            Outcome::Gone => self
                .groups
                .iter_mut()
                .filter(|group| group.is_of(inner))
                .for_each(|group| group.members.retain(|member| member.identity != identity)),
            Outcome::Done if is_probe => self.pass(inner, true, now),
            Outcome::Unknown => self.pass(inner, false, now),
            Outcome::Done => {
                for group in self.groups.iter_mut().filter(|group| group.is_of(inner)) {
                    group.row = 0;
                    let was_tried = group.member(identity).map(|member| member.passed);
                    match was_tried {
                        // What one could do all can.
                        Some(false) => group.members.clear(),
                        Some(true) => {
                            group.members.retain(|member| member.identity != identity);
                            (group.eager, group.relapses) = (true, 0);
                        }
                        None => {}
                    }
                }
            }
        }
        let is_new = self.groups.len() > known;
        self.groups.retain(|group| !group.members.is_empty());
        is_new
    }

    /// A dry run has passed, or only the write itself can tell: then the others wait for what becomes of it.
    fn pass(&mut self, action: &Action, is_sure: bool, now: Timestamp) {
        for group in self.groups.iter_mut().filter(|group| group.is_of(action)) {
            let for_all = is_sure && group.relapses == 0;
            match group.members.iter_mut().find(|member| member.identity == identity(action)) {
                Some(member) => (member.passed, member.at) = (true, now),
                None if for_all => {}
                None => {
                    let (identity, action) = (identity(action).to_owned(), Some(action.clone()));
                    let (reason, message) =
                        group.members.first().map(|first| (first.reason.clone(), first.message.clone())).unwrap_or_default();
                    group.members.push(Member { identity, action, reason, message, at: now, passed: true, seen: None });
                }
            }
            if for_all {
                (group.row, group.eager) = (0, true);
            } else {
                group.refused(now);
            }
        }
    }

    fn refuse(&mut self, action: &Action, reason: &str, message: &str, now: Timestamp) {
        let (word, target) = (action.word(), target(action));
        let is_it = |group: &&mut Group| group.write == word && group.target.as_deref() == target && group.reason == reason;
        // It may have been refused for another reason before, or have been the turn of others.
        let (mut relapses, mut had_passed) = (0, false);
        for group in self.groups.iter_mut().filter(|group| group.is_of(action) && group.reason != reason) {
            had_passed |= group.member(identity(action)).is_some_and(|member| member.passed);
            relapses = relapses.max(group.relapses);
            group.members.retain(|member| member.identity != identity(action));
            group.refused(now);
        }
        if !self.groups.iter_mut().any(|group| is_it(&group)) {
            self.groups.push(Group {
                write: word.to_owned(),
                target: target.map(str::to_owned),
                reason: reason.to_owned(),
                tries: 0,
                next: now,
                row: 0,
                eager: false,
                relapses: 0,
                members: Vec::new(),
            });
        }
        let Some(group) = self.groups.iter_mut().find(is_it) else { return };
        group.relapses = group.relapses.max(relapses);
        group.refused(now);
        let (told, message) = action.failure(message);
        let mut action = (!matches!(action, Action::CreatePod(_))).then(|| action.clone());
        // A dry run is about what has become of the pod meanwhile.
        if let Some(Action::DeletePod { version, .. }) = &mut action {
            *version = None;
        }
        let identity = action.as_ref().map_or_else(|| target.unwrap_or_default(), |action| self::identity(action)).to_owned();
        match group.members.iter_mut().find(|member| member.identity == identity) {
            Some(member) => {
                had_passed |= std::mem::replace(&mut member.passed, false);
                (member.at, member.action, member.reason, member.message) = (now, action, told.to_owned(), message);
            }
            None => {
                group.row = group.row.saturating_add(1);
                let reason = told.to_owned();
                group.members.push(Member { identity, action, reason, message, at: now, passed: false, seen: None });
            }
        }
        if had_passed {
            group.relapses = group.relapses.saturating_add(1);
            group.wait(now, group.distrust());
        }
    }
}
