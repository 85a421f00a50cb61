//! Laws of every kind that owns pods, on random worlds.

use api::tkex::Phase as Verdict;
use planner::plan::Action;
use planner::workload::decide;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError};

use super::checks::{assert_only_refused_suffer, assert_satisfied, filling, leave, work};
use super::events::{Event, happen, template};
use crate::world::{Forgery, Subject, World, hook_template, is_of_object};

pub(crate) fn config() -> Config {
    let cases = std::env::var("PLANNER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    Config { cases, rng_seed: RngSeed::Fixed(20_261_115), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() }
}

pub(crate) fn every_world_keeps_the_laws_and_comes_to_rest<S: Subject>(mut world: World<S>, events: &[Event]) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    prop_assert!(world.settle().is_some(), "law 2: no rest; {:?}", world.decide().steps);
    assert_satisfied(&world);
    let plan = world.decide();
    prop_assert!(plan.steps.is_empty() && plan.wake.is_none(), "law 8: a settled world has work: {:?}", plan.steps);
    Ok(())
}

pub(crate) fn a_forged_approval_lets_no_pod_go<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    forged: &[(usize, Forgery)],
) -> Result<(), TestCaseError> {
    world.cluster.pod_hook = Some(hook_template("pod"));
    happen(&mut world, &Event::PodHooks(1));
    for (event, (index, forgery)) in events.iter().zip(forged.iter().cycle()) {
        happen(&mut world, event);
        let pod = world.cluster.pods.keys().nth(index % world.cluster.pods.len().max(1)).cloned();
        pod.into_iter().for_each(|pod| world.forge(&pod, *forgery));
        // Checks every deletion against what was really approved.
        work(&mut world, None);
    }
    Ok(())
}

pub(crate) fn where_every_hook_denies_no_pod_is_asked_for_ever<S: Subject>(
    mut world: World<S>,
    events: &[Event],
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    // The clock stands still: a hook that has denied is not asked again.
    let mut rounds = 0;
    loop {
        world.cluster.answer(Verdict::Failed);
        let plan = world.decide();
        if !plan.actions().any(|action| matches!(action, Action::CreateHookRun(_))) {
            break;
        }
        rounds += 1;
        prop_assert!(rounds < 100, "law 8: {:?}", plan.steps);
        work(&mut world, None);
    }
    Ok(())
}

pub(crate) fn a_refused_write_suffers_alone<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    refused: &[Event],
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    prop_assert!(world.settle().is_some(), "law 2");
    let (template, replicas) = (world.object.workload().template.value(), world.object.workload().replicas);
    for event in refused {
        let Event::Refuse(word, pod, how, _) = event else { unreachable!() };
        happen(&mut world, &Event::Refuse(*word, *pod, *how, None));
    }
    world.refused.clear();
    world.drained.clear();
    world.edit(|spec| {
        *spec.template = if template == self::template(0) { self::template(1) } else { self::template(0) }.into();
        *spec.replicas = (replicas - 1).max(0);
        spec.strategy.paused = false;
    });
    world.paused_by_user = false;
    let start = world.cluster.now;
    // Until only refused writes are left.
    let (mut done, mut quiet) = (0, 0);
    for _ in 0..400 {
        work(&mut world, None);
        world.cluster.calm();
        world.cluster.pass(3);
        quiet = if world.done == done { quiet + 1 } else { 0 };
        done = world.done;
        if quiet == 25 {
            break;
        }
    }
    prop_assert_eq!(quiet, 25, "law 9: work that is not refused does not end: {:?} {:?}", world.cluster.rules, world.decide().steps);
    assert_only_refused_suffer(&world, start);
    prop_assert!(world.settle().is_some(), "law 9: no rest once nothing is refused; {:?}", world.decide().steps);
    assert_satisfied(&world);
    Ok(())
}

pub(crate) fn a_workload_that_is_deleted_waits_for_its_protected_pods<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    later: &[Event],
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    happen(&mut world, &Event::PodHooks(1));
    happen(&mut world, &Event::Protect(true));
    prop_assert!(world.settle().is_some());
    world.delete();
    for event in later {
        match event {
            Event::Work(cut) => leave(&mut world, *cut),
            // A user who removes the finalizer or a controller reference does not want to wait for the pods.
            Event::LoseFinalizer | Event::Orphan(_) => {}
            event => happen(&mut world, event),
        }
    }
    for _ in 0..100 {
        if world.finalizers().is_empty() {
            break;
        }
        world.cluster.rules.clear();
        world.cluster.unlisted.clear();
        world.cluster.pod_hook = Some(hook_template("pod"));
        world.cluster.answer(Verdict::Successful);
        leave(&mut world, None);
        happen(&mut world, &Event::Removed);
        world.cluster.pass(600);
    }
    prop_assert_eq!(world.finalizers(), Vec::<String>::new(), "law 2: {:?}", world.decide().steps);
    Ok(())
}

pub(crate) fn the_order_of_what_is_seen_does_not_matter<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    turn: usize,
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    let mut shuffled = world.observed();
    if !shuffled.seen.pods.is_empty() {
        let turn = turn % shuffled.seen.pods.len();
        shuffled.seen.pods.rotate_left(turn);
    }
    shuffled.seen.pods.reverse();
    shuffled.seen.revisions.reverse();
    let (straight, other) = (world.decide(), decide(&shuffled, world.cluster.now));
    let sorted = |plan: &planner::plan::Plan<_>| {
        let mut steps: Vec<Vec<String>> = plan.steps.iter().map(|step| step.iter().map(|action| format!("{action:?}")).collect()).collect();
        steps.iter_mut().for_each(|step| step.sort());
        steps
    };
    prop_assert_eq!(sorted(&straight), sorted(&other), "law 1");
    prop_assert_eq!(straight.status, other.status, "law 1");
    prop_assert_eq!(straight.holds, other.holds, "law 1");
    Ok(())
}

pub(crate) fn a_plan_carried_out_twice_does_nothing_twice<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    cut: usize,
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    let plan = world.decide();
    plan.actions().take(cut).for_each(|action| world.apply(action));
    let once = world.clone();
    // The whole plan again, as decided before its first write.
    plan.actions().for_each(|action| world.apply(action));
    let missing = |world: &World<S>| world.replicas().saturating_sub(world.available());
    let allowed = world.limits().max_unavailable.saturating_sub(world.limits().max_surge).max(missing(&once));
    prop_assert!(missing(&world) <= allowed, "law 7: an unsafe delete on a stale view");
    prop_assert!(filling(&world) <= (world.replicas() + world.limits().max_surge).max(filling(&once)), "law 6: a duplicate pod");
    Ok(())
}

pub(crate) fn a_view_from_before_our_own_writes_does_no_harm<S: Subject>(
    mut world: World<S>,
    events: &[Event],
    behind: usize,
) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    // Which revision is stable is remembered in status, which every pass writes, unless it has changed the object itself.
    for _ in 0..2 {
        let plan = world.decide();
        let of_object = plan.actions().filter(|action| is_of_object(action));
        of_object.for_each(|action| world.apply(action));
    }
    world.record(&world.decide());
    let plan = world.decide();
    let total = plan.actions().count();
    let mut late = world.clone();
    for (index, action) in plan.actions().enumerate() {
        world.apply(action);
        if index + behind < total {
            late.apply(action);
        }
    }
    let missing = |world: &World<S>| world.replicas().saturating_sub(world.available());
    let (present, lacking) = (filling(&world), missing(&world));
    for action in late.decide().actions() {
        prop_assert!(late.is_approved(action), "law 5: no hook approved {action:?}");
        world.apply(action);
    }
    let limits = world.limits();
    prop_assert!(filling(&world) <= present.max(world.replicas() + limits.max_surge), "law 7: too many pods on a stale view");
    let allowed = limits.max_unavailable.saturating_sub(limits.max_surge);
    prop_assert!(missing(&world) <= lacking.max(allowed), "law 7: an unsafe delete on a stale view");
    Ok(())
}

pub(crate) fn wake_is_in_the_future<S: Subject>(mut world: World<S>, events: &[Event]) -> Result<(), TestCaseError> {
    for event in events {
        happen(&mut world, event);
    }
    let plan = world.decide();
    prop_assert!(plan.wake.is_none_or(|wake| wake > world.cluster.now), "law 8: {:?} is not after {}", plan.wake, world.cluster.now);
    Ok(())
}

/// Checks the laws for a kind.
macro_rules! laws {
    ($kind:ty) => {
        use proptest::prelude::*;

        use crate::laws::events::{event, refusal, worlds};
        use crate::laws::shared;
        use crate::world::FORGERIES;

        proptest! {
            #![proptest_config(shared::config())]

            #[test]
            fn every_world_keeps_the_laws_and_comes_to_rest((world, events) in worlds::<$kind>()) {
                shared::every_world_keeps_the_laws_and_comes_to_rest(world, &events)?;
            }

            #[test]
            fn a_forged_approval_lets_no_pod_go((world, events) in worlds::<$kind>(), forged in proptest::collection::vec((0_usize..20, prop::sample::select(FORGERIES)), 1..20)) {
                shared::a_forged_approval_lets_no_pod_go(world, &events, &forged)?;
            }

            #[test]
            fn where_every_hook_denies_no_pod_is_asked_for_ever((world, events) in worlds::<$kind>()) {
                shared::where_every_hook_denies_no_pod_is_asked_for_ever(world, &events)?;
            }

            #[test]
            fn a_refused_write_suffers_alone((world, events) in worlds::<$kind>(), refused in proptest::collection::vec(refusal(), 1..3)) {
                shared::a_refused_write_suffers_alone(world, &events, &refused)?;
            }

            #[test]
            fn a_workload_that_is_deleted_waits_for_its_protected_pods((world, events) in worlds::<$kind>(), later in proptest::collection::vec(event(), 1..30)) {
                shared::a_workload_that_is_deleted_waits_for_its_protected_pods(world, &events, &later)?;
            }

            #[test]
            fn the_order_of_what_is_seen_does_not_matter((world, events) in worlds::<$kind>(), turn in 0_usize..7) {
                shared::the_order_of_what_is_seen_does_not_matter(world, &events, turn)?;
            }

            #[test]
            fn a_plan_carried_out_twice_does_nothing_twice((world, events) in worlds::<$kind>(), cut in 0_usize..12) {
                shared::a_plan_carried_out_twice_does_nothing_twice(world, &events, cut)?;
            }

            #[test]
            fn a_view_from_before_our_own_writes_does_no_harm((world, events) in worlds::<$kind>(), behind in 1_usize..6) {
                shared::a_view_from_before_our_own_writes_does_no_harm(world, &events, behind)?;
            }

            #[test]
            fn wake_is_in_the_future((world, events) in worlds::<$kind>()) {
                shared::wake_is_in_the_future(world, &events)?;
            }
        }
    };
}

pub(crate) use laws;
