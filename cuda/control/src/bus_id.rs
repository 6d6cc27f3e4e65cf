//! A GPU's name: its place on the PCI bus.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ParseError;

/// Text before the bus id in TensorFlow's description of a device.
const IN_DESCRIPTION: &str = "pci bus id: ";

/// A GPU's place on the PCI bus without the domain, as AntMan's files name it: `00:1e.0`.
///
/// The place is stored as numbers, not as a string, so different spellings of one place are equal: upper-case
/// or lower-case letters, with or without the PCI domain. The domain is dropped because AntMan drops it. On
/// a machine whose GPUs differ only in their domains, the files cannot distinguish them.
///
/// ```
/// use larder_control::BusId;
///
/// let id: BusId = "0000:00:1E.0".parse()?;
/// assert_eq!(id.to_string(), "00:1e.0");
/// assert_eq!(id, "00000000:00:1e.0".parse()?);
/// # Ok::<(), larder_control::ParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BusId {
    bus: u8,
    device: u8,
    function: u8,
}

impl BusId {
    /// Makes a bus id from numbers, as in a driver's attributes. Returns `None` if the device is above 31 or
    /// the function is above 7.
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Self {
            bus,
            device,
            function,
        })
    }

    /// Parses TensorFlow's description of a physical device: the text between `pci bus id: ` and the next
    /// comma, in any letter case.
    ///
    /// # Errors
    /// [`ParseError::BusId`] if there is no such part, or if it is not a bus id.
    pub fn from_description(text: &str) -> Result<Self, ParseError> {
        let text = text.to_ascii_lowercase();
        let (_, behind) = text.split_once(IN_DESCRIPTION).ok_or(ParseError::BusId)?;
        behind.split(',').next().unwrap_or(behind).trim().parse()
    }
}

impl FromStr for BusId {
    type Err = ParseError;

    /// Parses `bus:device.function` in hexadecimal: two digits, two digits and one digit. A PCI domain of up
    /// to eight digits and a colon may precede it.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let place = match text.split_once(':') {
            Some((domain, place)) if place.contains(':') => {
                hex(domain, 1..=8)?;
                place
            }
            _ => text,
        };
        let (bus, place) = place.split_once(':').ok_or(ParseError::BusId)?;
        let (device, function) = place.split_once('.').ok_or(ParseError::BusId)?;
        let byte = |digits, count| hex(digits, count..=count).map(|number| number as u8);
        Self::new(byte(bus, 2)?, byte(device, 2)?, byte(function, 1)?).ok_or(ParseError::BusId)
    }
}

/// Parses exactly `count` hexadecimal digits.
fn hex(digits: &str, count: core::ops::RangeInclusive<usize>) -> Result<u32, ParseError> {
    if !count.contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ParseError::BusId);
    }
    u32::from_str_radix(digits, 16).map_err(|_| ParseError::BusId)
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:02x}:{:02x}.{:x}",
            self.bus, self.device, self.function
        )
    }
}

impl Serialize for BusId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BusId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_place_are_equal() {
        let id = BusId::new(0, 0x1e, 0).unwrap();
        for text in [
            "00:1e.0",
            "00:1E.0",
            "0000:00:1E.0",
            "00000000:00:1e.0",
            "1:00:1e.0",
        ] {
            assert_eq!(text.parse(), Ok(id), "{text}");
        }
        assert_eq!(id.to_string(), "00:1e.0");
        assert_eq!(BusId::new(0xff, 31, 7).unwrap().to_string(), "ff:1f.7");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            ":",
            ".",
            "00:1e",
            "00:1e.",
            "0:1e.0",
            "000:1e.0",
            "00:1e.8",
            "00:20.0",
            "00:1e.00",
            "+0:1e.0",
            "00:1e.0 ",
            ":00:1e.0",
            "000000000:00:1e.0",
            "x:00:1e.0",
            "00:00:00:1e.0",
            "ä0:1e.0",
        ] {
            assert_eq!(text.parse::<BusId>(), Err(ParseError::BusId), "{text:?}");
        }
        assert_eq!(BusId::new(0, 32, 0), None);
        assert_eq!(BusId::new(0, 0, 8), None);
    }

    #[test]
    fn the_id_is_found_in_tensorflows_description() {
        let text = "device: 0, name: Tesla P100, pci bus id: 0000:00:1E.0, compute capability: 6.0";
        assert_eq!(
            BusId::from_description(text),
            Ok(BusId::new(0, 0x1e, 0).unwrap())
        );
        let at_the_end = "device: 0, PCI Bus ID: 0000:3B:00.0";
        assert_eq!(
            BusId::from_description(at_the_end),
            Ok(BusId::new(0x3b, 0, 0).unwrap())
        );
        assert_eq!(
            BusId::from_description("device: 0, name: x"),
            Err(ParseError::BusId)
        );
        assert_eq!(
            BusId::from_description("pci bus id: , x"),
            Err(ParseError::BusId)
        );
    }

    #[test]
    fn every_id_is_read_as_it_is_written() {
        for bus in 0..=255 {
            for device in 0..32 {
                for function in 0..8 {
                    let id = BusId::new(bus, device, function).unwrap();
                    assert_eq!(id.to_string().parse(), Ok(id));
                }
            }
        }
    }
}
