// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Kamailio and SIPp are told: the proxy's configuration, and the two sides of a call.
//!
//! The proxy is stateful and stays in the way of the whole call (`Record-Route`), so that it forwards the six messages that
//! paper 003 counts: INVITE, 180, 200, ACK, BYE, 200. It has one process for its socket and no database. Its memory is there
//! and locked before the first message, as Kamailio's documentation advises for real-time use.
//!
//! Not here: starting them ([`super`]).

use std::net::SocketAddrV4;

/// The configuration of a proxy at `proxy` whose calls go to `callee`.
pub fn proxy(proxy: SocketAddrV4, callee: SocketAddrV4) -> String {
    format!(
        "\
debug=0
log_stderror=yes
shm_force_alloc=yes
mlock_pages=yes
fork=yes
children=1
auto_aliases=no
disable_tcp=yes
disable_core_dump=yes
dns=no
rev_dns=no
listen=udp:{proxy}
loadmodule \"tm.so\"
loadmodule \"sl.so\"
loadmodule \"rr.so\"
loadmodule \"pv.so\"
loadmodule \"maxfwd.so\"
loadmodule \"textops.so\"
loadmodule \"siputils.so\"
request_route {{
	if (!mf_process_maxfwd_header(\"10\")) {{
		sl_send_reply(\"483\", \"Too Many Hops\");
		exit;
	}}
	if (has_totag()) {{
		if (loose_route()) {{
			t_relay();
			exit;
		}}
		if (!is_method(\"ACK\")) {{
			sl_send_reply(\"404\", \"Not here\");
		}}
		exit;
	}}
	record_route();
	$du = \"sip:{callee}\";
	t_relay();
}}
"
    )
}

/// The caller. Calls begin at a constant rate, and each waits a random time first, uniform up to `wait_ms`.
pub fn caller(wait_ms: u32) -> String {
    let request = |line: &str, sequence: &str, routes: &str, body: &str| {
        format!(
            "\
{line}
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller@[local_ip]:[local_port]>;tag=[pid]kbp[call_number]
To: <sip:[service]@[remote_ip]:[remote_port]>{routes}
Call-ID: [call_id]
CSeq: {sequence}
Contact: <sip:caller@[local_ip]:[local_port]>
Max-Forwards: 70
{body}"
        )
    };
    let within = "[peer_tag_param]\n[routes]";
    let invite = request(
        "INVITE sip:[service]@[remote_ip]:[remote_port] SIP/2.0",
        "1 INVITE",
        "",
        &format!("Content-Type: application/sdp\nContent-Length: [len]\n\n{SDP}"),
    );
    let ack = request("ACK [next_url] SIP/2.0", "1 ACK", within, EMPTY);
    let bye = request("BYE [next_url] SIP/2.0", "2 BYE", within, EMPTY);
    scenario(
        "caller",
        &[
            format!("<pause distribution=\"uniform\" min=\"0\" max=\"{wait_ms}\"/>"),
            send(&invite, true),
            "<recv response=\"100\" optional=\"true\"/>".into(),
            "<recv response=\"180\" optional=\"true\"/>".into(),
            "<recv response=\"200\" rrs=\"true\"/>".into(),
            send(&ack, false),
            send(&bye, true),
            "<recv response=\"200\"/>".into(),
        ],
    )
}

/// Who is called.
pub fn callee() -> String {
    let response = |line: &str, body: &str| {
        format!(
            "\
{line}
[last_Via:]
[last_Record-Route:]
[last_From:]
[last_To:];tag=[pid]kbp[call_number]
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port];transport=[transport]>
{body}"
        )
    };
    let ringing = response("SIP/2.0 180 Ringing", EMPTY);
    let accepted = response(
        "SIP/2.0 200 OK",
        &format!("Content-Type: application/sdp\nContent-Length: [len]\n\n{SDP}"),
    );
    // The BYE has the tag already.
    let ended = response("SIP/2.0 200 OK", EMPTY).replace(";tag=[pid]kbp[call_number]", "");
    scenario(
        "callee",
        &[
            "<recv request=\"INVITE\"/>".into(),
            send(&ringing, false),
            send(&accepted, true),
            "<recv request=\"ACK\"/>".into(),
            "<recv request=\"BYE\"/>".into(),
            send(&ended, false),
            // A BYE whose answer was lost comes again.
            "<timewait milliseconds=\"4000\"/>".into(),
        ],
    )
}

const EMPTY: &str = "Content-Length: 0\n";
const SDP: &str = "\
v=0
o=kbp 1 1 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[media_ip_type] [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0
a=rtpmap:0 PCMU/8000
";

fn send(message: &str, is_sent_again: bool) -> String {
    let again = if is_sent_again {
        " retrans=\"500\""
    } else {
        ""
    };
    format!("<send{again}><![CDATA[\n{message}\n]]></send>")
}

fn scenario(name: &str, steps: &[String]) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"ISO-8859-1\" ?>\n<scenario name=\"{name}\">\n{}\n</scenario>\n",
        steps.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_where_they_belong() {
        let text = proxy(
            "10.0.0.1:5060".parse().unwrap(),
            "10.0.0.2:5070".parse().unwrap(),
        );
        assert!(text.contains("listen=udp:10.0.0.1:5060\n"), "{text}");
        assert!(text.contains("$du = \"sip:10.0.0.2:5070\";"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    /// SIPp sends what stands in a scenario, so a request without a header is sent without it.
    #[test]
    fn requests_in_a_call_follow_the_route_and_responses_bring_it() {
        let caller = caller(200);
        assert!(caller.contains("max=\"200\""));
        assert_eq!(caller.matches("[routes]").count(), 2, "{caller}");
        assert_eq!(caller.matches("Call-ID: [call_id]").count(), 3);
        assert_eq!(caller.matches("CSeq: ").count(), 3);
        let callee = callee();
        assert_eq!(callee.matches("[last_Record-Route:]").count(), 3);
        assert_eq!(callee.matches(";tag=[pid]").count(), 2, "{callee}");
    }
}
