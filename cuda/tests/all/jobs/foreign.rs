//! Memory that a job takes from the driver directly.

use larder_cuda::ForeignMemory;
use larder_cuda::job::larder_control::{ControlFile, SleepState};

use super::common::{MIB, alone_and_clean};
use super::{Folder, by_hand, gpu, setup};

#[test]
fn foreign_memory_obeys_the_control_file_and_stands_in_the_status() {
    alone_and_clean(|_| {
        let folder = Folder::new("foreign");
        let (_, job) = super::job(by_hand(&folder));
        let foreign = ForeignMemory::new(64 * MIB).unwrap();
        job.manage_foreign(gpu(), &foreign);
        let charge = foreign.charge(8 * MIB).unwrap();
        folder.order(Some(6 * MIB), Some(3), None);
        job.poll();
        assert!(foreign.charge(1).is_err());
        let status = folder.status();
        let (said, usage) = (status.larder.unwrap(), status.gpus[&gpu()].usage);
        assert_eq!(said.control_version, Some(3));
        let numbers = (said.limit_bytes, said.held_bytes, said.deferred_bytes);
        assert_eq!(numbers, (6 * MIB, 8 * MIB, 2 * MIB));
        assert_eq!(usage.device_reserved_bytes, 8 * MIB);
        drop(charge);
        job.poll();
        assert_eq!(folder.status().larder.unwrap().deferred_bytes, 0);
        drop(foreign.charge(6 * MIB).unwrap());
    });
}

#[test]
fn a_job_sleeps_only_while_it_holds_no_foreign_memory() {
    alone_and_clean(|_| {
        let folder = Folder::new("foreign-sleep");
        let (clock, job) = super::job(by_hand(&folder));
        let (_, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let foreign = ForeignMemory::new(u64::MAX).unwrap();
        job.manage_foreign(gpu(), &foreign);
        let block = memory.alloc(&stream, 8 * MIB).unwrap();
        let charge = foreign.charge(MIB).unwrap();
        let tell = |asleep| {
            let mut file = ControlFile::default();
            file.asleep = Some(asleep);
            folder.say(&file.to_text());
            job.poll();
        };
        tell(true);
        let (ran, _) = job.run(0, || true).unwrap();
        assert!(ran && !memory.is_asleep());
        let sleep = folder.status().larder.unwrap().sleep.unwrap();
        assert_eq!(sleep.state, SleepState::Awake);
        assert!(sleep.problem.unwrap().contains("past Larder"));
        drop(charge);
        // It is tried again a little later.
        clock.advance(std::time::Duration::from_secs(1));
        let woken = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| job.run(0, || memory.is_asleep()).unwrap().0);
            while !memory.is_asleep() {
                std::thread::yield_now();
            }
            tell(false);
            sleeper.join().unwrap()
        });
        assert!(!woken);
        memory.free(&stream, block).unwrap();
    });
}
