//! Memory that a job takes from the driver directly.

use std::thread;
use std::time::Duration;

use larder_cuda::ForeignMemory;
use larder_cuda::job::larder_control::SleepState;

use super::common::{MIB, alone_and_clean};
use super::{Folder, by_hand, gpu, job, until, with_job};

#[test]
fn foreign_memory_obeys_the_control_file_and_stands_in_the_status() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let (_, job) = job(by_hand(&folder));
        let foreign = ForeignMemory::new(64 * MIB).unwrap();
        job.manage_foreign(gpu(), &foreign);
        let charge = foreign.charge(8 * MIB).unwrap();
        folder.order(6, 3, None);
        job.poll();
        assert!(foreign.charge(1).is_err());
        let (said, usage) = (folder.larder(), folder.status().gpus[&gpu()].usage);
        assert_eq!(said.control_version, Some(3));
        let numbers = (said.limit_bytes, said.held_bytes, said.deferred_bytes);
        assert_eq!(numbers, (6 * MIB, 8 * MIB, 2 * MIB));
        assert_eq!(usage.device_reserved_bytes, 8 * MIB);
        drop(charge);
        job.poll();
        assert_eq!(folder.larder().deferred_bytes, 0);
        drop(foreign.charge(6 * MIB).unwrap());
    });
}

#[test]
fn a_job_sleeps_only_while_it_holds_no_foreign_memory() {
    with_job(|rig| {
        let (job, memory, stream) = (&rig.job, &rig.memory, &rig.stream);
        let foreign = ForeignMemory::new(u64::MAX).unwrap();
        job.manage_foreign(gpu(), &foreign);
        let block = memory.alloc(stream, 8 * MIB).unwrap();
        let charge = foreign.charge(MIB).unwrap();
        rig.tell(|file| file.asleep = Some(true));
        let (ran, _) = job.run(0, || true).unwrap();
        assert!(ran && !memory.is_asleep());
        let sleep = rig.larder().sleep.unwrap();
        assert_eq!(sleep.state, SleepState::Awake);
        assert!(sleep.problem.unwrap().contains("without Larder"));
        drop(charge);
        // The job tries again after a second.
        rig.clock.advance(Duration::from_secs(1));
        let was_asleep = thread::scope(|scope| {
            let sleeper = scope.spawn(|| job.run(0, || memory.is_asleep()).unwrap().0);
            until(|| memory.is_asleep());
            rig.tell(|file| file.asleep = Some(false));
            sleeper.join().unwrap()
        });
        assert!(!was_asleep);
        memory.free(stream, block).unwrap();
    });
}
