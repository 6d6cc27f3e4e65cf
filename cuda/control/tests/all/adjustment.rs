//! Limits by bus id (7.5), over devices that only remember.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use larder_control::{
    AdjustableDevice, BusId, Ceiling, Changes, ControlFile, ControlState, UsageAdjustment,
};
use larder_core::limits::{BudgetError, LimitAnswer};
use larder_model::Random;
use larder_model::antman::{LimitedDevice, adjust};

/// Holds some bytes; a limit below them is deferred, one below the floor refused.
#[derive(Clone, Debug)]
struct Device(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    bus_id: BusId,
    limit: Cell<u64>,
    held: Cell<u64>,
    floor: Cell<u64>,
    asked: RefCell<Vec<u64>>,
}

impl Device {
    fn new(bus_id: &str, limit: u64) -> Self {
        Self(Rc::new(Inner {
            bus_id: bus_id.parse().unwrap(),
            limit: Cell::new(limit),
            held: Cell::new(0),
            floor: Cell::new(0),
            asked: RefCell::new(Vec::new()),
        }))
    }

    fn asked(&self) -> Vec<u64> {
        self.0.asked.take()
    }
}

impl AdjustableDevice for Device {
    fn bus_id(&self) -> BusId {
        self.0.bus_id
    }

    fn limit_bytes(&self) -> u64 {
        self.0.limit.get()
    }

    fn set_limit(&self, bytes: u64) -> LimitAnswer {
        self.0.asked.borrow_mut().push(bytes);
        let floor_bytes = self.0.floor.get();
        if bytes < floor_bytes {
            return LimitAnswer::Refused(BudgetError::BelowFloor { floor_bytes });
        }
        self.0.limit.set(bytes);
        LimitAnswer::with_excess(self.0.held.get().saturating_sub(bytes))
    }
}

const GPU: &str = "00:1e.0";

fn gpu() -> BusId {
    GPU.parse().unwrap()
}

fn over(devices: &[Device], ceiling: Ceiling) -> UsageAdjustment<Device> {
    let mut adjustment = UsageAdjustment::new(ceiling);
    for device in devices {
        adjustment.add(device.clone());
    }
    adjustment
}

/// A device as AntMan has it.
fn antmans(limit_bytes: u64, held_bytes: u64) -> LimitedDevice {
    LimitedDevice {
        gpu: GPU.to_owned(),
        first_bytes: limit_bytes,
        limit_bytes,
        held_bytes,
    }
}

#[test]
fn s7_5_a_limit_is_put_in_force_once() {
    let device = Device::new("0000:00:1E.0", 1000);
    let mut adjustment = over(std::slice::from_ref(&device), Ceiling::Initial);
    let first = adjustment.adjust(gpu(), 400).unwrap();
    assert!(first.is_met() && first.clamped_to_bytes.is_none());
    assert_eq!(device.limit_bytes(), 400);
    let again = adjustment.adjust(gpu(), 400).unwrap();
    assert!(again.is_met() && again.outcomes[0].answer.is_none());
    assert_eq!(device.asked(), [400]);
}

#[test]
fn s7_5_a_limit_above_the_first_one_is_clamped_and_said_to_be() {
    let device = Device::new(GPU, 1000);
    let mut adjustment = over(std::slice::from_ref(&device), Ceiling::Initial);
    for (asked, clamped, limit) in [
        (999, None, 999),
        (1000, None, 1000),
        (1001, Some(1000), 1000),
    ] {
        let outcome = adjustment.adjust(gpu(), asked).unwrap();
        assert_eq!(
            (outcome.asked_bytes, outcome.clamped_to_bytes),
            (asked, clamped)
        );
        assert_eq!(device.limit_bytes(), limit);
    }
    for (ceiling, limit) in [
        (Ceiling::Bytes(1500), 1500),
        (Ceiling::Bytes(500), 500),
        (Ceiling::None, u64::MAX),
    ] {
        let device = Device::new(GPU, 1000);
        let mut adjustment = over(std::slice::from_ref(&device), ceiling);
        let outcome = adjustment.adjust(gpu(), u64::MAX).unwrap();
        assert_eq!(
            outcome.clamped_to_bytes,
            (limit < u64::MAX).then_some(limit)
        );
        assert_eq!(device.limit_bytes(), limit);
    }
}

#[test]
fn s7_5_a_gpu_without_a_device_is_an_error_value() {
    let mut adjustment = over(&[Device::new(GPU, 1)], Ceiling::Initial);
    let error = adjustment
        .adjust("3b:00.0".parse().unwrap(), 1)
        .unwrap_err();
    assert!(error.to_string().contains("3b:00.0"));
}

#[test]
fn s7_5_all_devices_of_a_gpu_share_its_limit_and_antman_knows_the_first_only() {
    let devices = [
        Device::new(GPU, 300),
        Device::new("3b:00.0", 7),
        Device::new(GPU, 100),
    ];
    let mut adjustment = over(&devices, Ceiling::Initial);
    let limits = || devices.iter().map(Device::limit_bytes).collect::<Vec<_>>();
    for (asked, expected) in [
        (200, [150, 7, 50]),
        (3, [2, 7, 0]),
        (u64::MAX, [300, 7, 100]),
        (0, [0, 7, 0]),
    ] {
        let adjusted = adjustment.adjust(gpu(), asked).unwrap();
        assert_eq!(limits(), expected, "{asked}");
        assert_eq!(
            adjusted
                .outcomes
                .iter()
                .map(|outcome| outcome.device)
                .collect::<Vec<_>>(),
            [0, 2]
        );
    }
    let mut devices = [antmans(300, 0), antmans(100, 0)];
    assert!(adjust(&mut devices, GPU, 200));
    assert_eq!(devices.map(|device| device.limit_bytes), [200, 100]);
}

#[test]
fn s7_5_shares_never_add_up_to_more_than_was_asked() {
    for seed in 0..5000 {
        let mut random = Random::new(seed);
        let mut number = || random.next_u64() >> (random.next_u64() % 64);
        let devices: Vec<Device> = (0..1 + number() % 4)
            .map(|_| Device::new(GPU, number()))
            .collect();
        let count = devices.len() as u128;
        let ceiling: u128 = devices
            .iter()
            .map(|device| u128::from(device.limit_bytes()))
            .sum();
        let asked = number();
        let mut adjustment = over(&devices, Ceiling::Initial);
        let adjusted = adjustment.adjust(gpu(), asked).unwrap();
        let sum: u128 = adjusted
            .outcomes
            .iter()
            .map(|outcome| u128::from(outcome.limit_bytes))
            .sum();
        let total = u128::from(asked).min(ceiling);
        assert!(
            sum <= total && total - sum < count,
            "seed {seed}: {sum} of {total}"
        );
    }
}

#[test]
fn s7_5_a_shrink_that_is_not_met_stays_pending_until_it_is() {
    let device = Device::new(GPU, 1000);
    device.0.held.set(600);
    let mut adjustment = over(std::slice::from_ref(&device), Ceiling::Initial);
    let adjusted = adjustment.adjust(gpu(), 400).unwrap();
    assert_eq!(
        adjusted.outcomes[0].answer,
        Some(LimitAnswer::Deferred { bytes: 200 })
    );
    assert!(!adjusted.is_met());
    device.0.held.set(401);
    assert_eq!(
        adjustment.retry()[0].answer,
        Some(LimitAnswer::Deferred { bytes: 1 })
    );
    assert_eq!(adjustment.pending().collect::<Vec<_>>(), [(0, 400)]);
    device.0.held.set(400);
    assert_eq!(adjustment.retry()[0].answer, Some(LimitAnswer::Applied));
    assert!(adjustment.retry().is_empty());
    assert_eq!(adjustment.pending().count(), 0);
    assert_eq!(device.asked(), [400, 400, 400]);
}

#[test]
fn s7_5_a_refused_limit_stays_pending_and_a_new_one_takes_its_place() {
    let device = Device::new(GPU, 1000);
    device.0.floor.set(500);
    let mut adjustment = over(std::slice::from_ref(&device), Ceiling::Initial);
    assert!(!adjustment.adjust(gpu(), 400).unwrap().is_met());
    assert_eq!(device.limit_bytes(), 1000);
    device.0.floor.set(0);
    assert_eq!(adjustment.retry()[0].answer, Some(LimitAnswer::Applied));
    assert_eq!(device.limit_bytes(), 400);
    // The limit in force is asked for while another is pending: that one is over.
    device.0.floor.set(400);
    assert!(!adjustment.adjust(gpu(), 300).unwrap().is_met());
    assert!(adjustment.adjust(gpu(), 400).unwrap().is_met());
    assert_eq!(adjustment.pending().count(), 0);
}

#[test]
fn s7_5_antman_raises_a_limit_it_cannot_meet_and_forgets_it() {
    let mut devices = [antmans(1000, 600)];
    assert!(adjust(&mut devices, GPU, 400));
    assert_eq!(devices[0].limit_bytes, 600);
    devices[0].held_bytes = 0;
    assert_eq!(devices[0].limit_bytes, 600, "nothing asks again");
    // But the next file with the same number.
    assert!(adjust(&mut devices, GPU, 400));
    assert_eq!(devices[0].limit_bytes, 400);
    assert!(
        !adjust(&mut devices, "0000:00:1e.0", 400),
        "letter for letter"
    );
}

#[test]
fn s7_5_a_files_changes_are_put_in_force_gpu_by_gpu() {
    let device = Device::new(GPU, 4 << 30);
    let mut adjustment = over(std::slice::from_ref(&device), Ceiling::Initial);
    let mut state = ControlState::default();
    // Upstream's own case: a mebibyte, then two gibibytes; and a GPU that nobody has.
    for bytes in [1 << 20, 2 << 30] {
        let mut file = ControlFile::default();
        file.limit(gpu(), bytes);
        file.limit("3b:00.0".parse().unwrap(), bytes);
        let changes: Changes = state.apply(&file);
        let results = adjustment.apply(&changes);
        assert!(results[0].as_ref().is_ok_and(|adjusted| adjusted.is_met()));
        assert!(results[1].is_err());
        assert_eq!(device.limit_bytes(), bytes);
    }
}
