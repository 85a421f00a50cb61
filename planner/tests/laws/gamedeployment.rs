//! Laws of GameDeployments, and worlds that once broke one.

use api::tkex::{GameDeployment, UpdateType};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use planner::facts::pod::PodFacts;
use serde_json::json;

use super::checks::{assert_satisfied, work};
use super::events::{Event, ORDERS, happen, template};
use super::laws;
use crate::world::{GameWorld, How};

laws!(GameDeployment);

/// The node has not seen the image of the hot patch, and the next template restores the image that is still running.
#[test]
fn pods_that_were_hot_patched_can_be_updated_in_place() {
    let mut world = GameWorld::new(&json!({ "replicas": 4, "template": template(0), "updateStrategy": { "type": "HotPatchUpdate" } }));
    happen(&mut world, &Event::Type(UpdateType::HotPatchUpdate));
    for event in [Event::Work(None), Event::AllReady, Event::Template(1), Event::Work(None)] {
        happen(&mut world, &event);
    }
    happen(&mut world, &Event::Type(UpdateType::InplaceUpdate));
    happen(&mut world, &Event::Template(2));
    assert!(world.settle().is_some(), "law 2: no rest");
    assert_satisfied(&world);
}

/// A user pauses between the operator's resume and the status that records it.
#[test]
fn a_pause_right_after_the_operator_resumed_stays() {
    let spec = json!({ "replicas": 1, "template": template(0), "updateStrategy": { "type": "RollingUpdate" } });
    // A new template, other steps, and the end of a timed pause.
    for (steps, change) in [(1, Event::Template(2)), (3, Event::Steps(0)), (0, Event::Pass(100))] {
        for pauses_after in 0..4 {
            let mut world = GameWorld::new(&spec);
            for event in [Event::Work(None), Event::AllReady, Event::Steps(steps), Event::Template(1)] {
                happen(&mut world, &event);
            }
            for _ in 0..4 {
                [Event::Work(None), Event::AllReady, Event::Removed].iter().for_each(|event| happen(&mut world, event));
            }
            happen(&mut world, &change);
            (0..pauses_after).for_each(|_| happen(&mut world, &Event::Work(None)));
            happen(&mut world, &Event::Pause(true));
            (0..4).for_each(|_| happen(&mut world, &Event::Work(None)));
        }
    }
}

/// The template changes when half of an update is made, and again before the rest is: no container is forgotten.
#[test]
fn a_pod_that_has_half_of_a_change_gets_the_rest_when_the_template_comes_back() {
    for templates in [vec![1, 2, 1], vec![1, 2, 3, 2], vec![1, 3, 2, 3, 1]] {
        let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
        let mut world = GameWorld::new(&json!({ "replicas": 1, "template": template(0), "updateStrategy": strategy }));
        for event in [Event::Work(None), Event::AllReady, Event::Work(None)] {
            happen(&mut world, &event);
        }
        for number in templates {
            happen(&mut world, &Event::Template(number));
            (0..2).for_each(|_| happen(&mut world, &Event::Work(None)));
        }
        let wanted = world.object.spec.template.value();
        assert!(world.settle().is_some(), "law 2: no rest");
        assert_satisfied(&world);
        for (container, wanted) in
            world.cluster.pods.values().flat_map(|pod| pod.containers.iter().zip(wanted["spec"]["containers"].as_array().unwrap()))
        {
            assert_eq!(wanted["image"], container.image.as_str(), "{}", container.name);
        }
    }
}

/// An in-place update was announced when the strategy became HotPatchUpdate, and the template is restored.
#[test]
fn a_hot_patch_ends_what_was_announced_in_place() {
    let spec = json!({ "replicas": 1, "template": template(0), "updateStrategy": { "type": "InplaceUpdate" } });
    for order in ORDERS {
        let mut world = GameWorld::new(&spec);
        for event in [
            Event::Order(*order),
            Event::Work(None),
            Event::Template(1),
            Event::Work(None),
            Event::Type(UpdateType::HotPatchUpdate),
            Event::AllReady,
            Event::Work(None),
            Event::Template(0),
            Event::Scale(2),
        ] {
            happen(&mut world, &event);
        }
        assert!(world.settle().is_some(), "law 2: no rest");
        happen(&mut world, &Event::Template(1));
        assert!(world.settle().is_some(), "law 2: no rest");
        assert_satisfied(&world);
    }
}

/// A pod has the update's images when the template changes twice, there and back, and the first change is refused: the pod is told
/// to be what it is, although the rollout is paused or keeps it for the stable revision.
#[test]
fn a_refused_change_is_taken_back_whatever_stops_the_rollout() {
    for stop in [Event::Pause(true), Event::Partition(IntOrString::Int(1)), Event::Steps(2)] {
        let mut world = GameWorld::new(&json!({ "replicas": 1, "template": template(0), "updateStrategy": { "type": "InplaceUpdate" } }));
        for event in [
            Event::Work(None),
            Event::Template(3),
            Event::Work(None),
            Event::Refuse(Some("update_pod_inplace"), None, (How::Quota, false), None),
            Event::Template(0),
            Event::Work(None),
            Event::Template(3),
            Event::Work(None),
            stop,
            Event::AllReady,
            Event::Work(None),
            Event::AllReady,
        ] {
            happen(&mut world, &event);
        }
        let pod = world.cluster.pods.values().next().unwrap();
        assert!(pod.is_ready() && world.cluster.has_images_of(pod, pod.revision().unwrap()), "{pod:?}");
    }
}

/// A pod that should go back to the stable revision may not be changed, and gets its label back: another pod goes back in its place.
#[test]
fn a_pod_that_may_not_go_back_does_not_count_for_the_partition() {
    let mut world = GameWorld::new(&json!({ "replicas": 1, "template": template(2), "updateStrategy": { "type": "InplaceUpdate" } }));
    for event in [
        Event::Work(None),
        Event::Template(3),
        Event::Work(None),
        Event::Scale(3),
        Event::Work(None),
        Event::AllReady,
        Event::Work(None),
        Event::Ready(2),
        Event::Partition(IntOrString::Int(1)),
        Event::Work(None),
    ] {
        happen(&mut world, &event);
    }
    for refused in 0..3 {
        let mut world = world.clone();
        for event in [
            Event::Refuse(Some("update_pod_inplace"), Some(refused), (How::Quota, false), None),
            Event::Template(0),
            Event::Work(None),
            Event::Template(3),
            Event::Work(None),
        ] {
            happen(&mut world, &event);
        }
        (0..10).for_each(|_| {
            world.cluster.calm();
            world.cluster.pass(5);
            work(&mut world, None);
        });
        let updated = world.object.status.as_ref().unwrap().update_revision.clone();
        let on_it = world.ours().filter(|pod| pod.revision() == Some(&*updated)).count();
        assert_eq!(on_it, 2, "one is kept: {:?}", world.ours().map(|pod| (&pod.name, pod.revision())).collect::<Vec<_>>());
    }
}

/// Half of an update is made when the pod is chosen for deletion, and then stays after all; its approval cannot be withdrawn.
#[test]
fn a_pod_whose_approval_cannot_be_taken_back_serves_with_half_of_its_change() {
    let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
    let mut world = GameWorld::new(&json!({ "replicas": 4, "template": template(0), "updateStrategy": strategy }));
    for event in [
        Event::Work(None),
        Event::Scale(5),
        Event::PodHooks(4),
        Event::AllReady,
        Event::Work(None),
        Event::Scale(4),
        Event::Template(1),
        Event::Work(None),
        Event::Removed,
        Event::Partition(IntOrString::Int(2)),
        Event::Fail(14),
    ] {
        happen(&mut world, &event);
    }
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [Event::Refuse(Some("delete_hookrun"), None, (How::Quota, false), None), Event::Template(0), Event::Scale(3)] {
        happen(&mut world, &event);
    }
    for _ in 0..40 {
        work(&mut world, None);
        world.cluster.calm();
        world.cluster.pass(3);
    }
    let out: Vec<&str> = world.ours().filter(|pod| pod.is_active() && !pod.is_ready()).map(|pod| pod.name.as_str()).collect();
    assert!(out.is_empty(), "law 9: {out:?}");
    assert!(world.settle().is_some(), "law 9: no rest once nothing is refused");
    assert_satisfied(&world);
}

/// A pod has two approvals that cannot be withdrawn: each is retried, and both are deleted when nothing is refused any more.
#[test]
fn two_approvals_of_one_pod_do_not_wait_for_each_other() {
    let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
    let mut world = GameWorld::new(&json!({ "replicas": 2, "template": template(0), "updateStrategy": strategy }));
    happen(&mut world, &Event::PodHooks(3));
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [
        Event::Refuse(Some("delete_pod"), None, (How::Quota, false), None),
        Event::Refuse(Some("delete_hookrun"), None, (How::Quota, false), None),
        Event::Template(1),
        Event::Scale(1),
    ] {
        happen(&mut world, &event);
    }
    for _ in 0..40 {
        work(&mut world, None);
        world.cluster.calm();
        world.cluster.pass(3);
    }
    assert!(world.settle().is_some(), "law 9: no rest once nothing is refused");
    assert_satisfied(&world);
}

/// The pod that scaling in chose may not be deleted, and the one that the partition keeps is deleted instead: the first takes its place in
/// the partition.
#[test]
fn a_pod_that_may_not_be_deleted_takes_the_place_in_the_partition_of_the_one_that_goes_instead() {
    let mut world = GameWorld::new(&json!({ "replicas": 2, "template": template(0) }));
    for event in [
        Event::Template(3),
        Event::Work(None),
        Event::Vanish(2),
        Event::Type(UpdateType::InplaceUpdate),
        Event::Template(0),
        Event::Partition(IntOrString::Int(1)),
    ] {
        happen(&mut world, &event);
    }
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [Event::Refuse(Some("delete_pod"), Some(0), (How::Quota, false), None), Event::Template(1), Event::Scale(1)] {
        happen(&mut world, &event);
    }
    for _ in 0..10 {
        work(&mut world, None);
        world.cluster.calm();
        world.cluster.pass(3);
    }
    let status = world.object.status.clone().unwrap();
    let revisions: Vec<Option<&str>> = world.cluster.pods.values().map(PodFacts::revision).collect();
    assert_eq!(revisions, [Some(&*status.current_revision)], "{status:?}");
    assert_ne!(status.current_revision, status.update_revision, "the partition keeps it");
}
