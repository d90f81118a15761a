// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transport against a real kernel: the controller of generic netlink is a family like any
//! other and is always there.

use kbp_core::attr::Attr;
use kbp_core::netlink::{Connection, Failure};

const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const VERSION: u8 = 2;
/// The controller's number, fixed by the kernel's interface.
const CONTROLLER_ID: [u8; 2] = 16u16.to_ne_bytes();

fn controller() -> Connection {
    Connection::open("nlctrl", VERSION)
        .unwrap()
        .expect("every kernel has the controller")
}

#[test]
fn a_request_gets_its_answer_and_a_dump_all_of_them() {
    let mut connection = controller();
    for _ in 0..2 {
        let replies = connection
            .request(GET_FAMILY, vec![Attr::string(FAMILY_NAME, "nlctrl")])
            .unwrap();
        assert_eq!(replies.len(), 1);
        assert_eq!(
            replies[0].attrs.get(FAMILY_ID),
            Some(CONTROLLER_ID.as_slice())
        );
    }
    let families = connection.dump(GET_FAMILY).unwrap();
    let names: Vec<_> = families
        .iter()
        .filter_map(|f| f.attrs.optional_string(FAMILY_NAME))
        .collect();
    assert!(names.iter().any(|name| name == "nlctrl"), "{names:?}");
}

#[test]
fn a_refusal_has_its_errno_and_the_connection_goes_on() {
    let mut connection = controller();
    let error = connection
        .request(GET_FAMILY, vec![Attr::string(FAMILY_NAME, "kbp-none")])
        .unwrap_err();
    assert!(
        matches!(&error, Failure::Refused(refusal) if refusal.errno == libc::ENOENT),
        "{error}"
    );
    // A number of the wrong length is refused with the kernel's own words.
    let error = connection
        .request(GET_FAMILY, vec![Attr::bytes(FAMILY_ID, [1])])
        .unwrap_err();
    let Failure::Refused(refusal) = error else {
        panic!("{error}")
    };
    assert!(
        refusal.message.is_some() && refusal.offset.is_some(),
        "{refusal:?}"
    );
    connection
        .request(GET_FAMILY, vec![Attr::string(FAMILY_NAME, "nlctrl")])
        .unwrap();
}

#[test]
fn an_unknown_family_or_group_is_no_error() {
    assert!(Connection::open("kbp-none", 1).unwrap().is_none());
    assert!(controller().join("notify").unwrap());
    assert!(!controller().join("kbp-none").unwrap());
}
