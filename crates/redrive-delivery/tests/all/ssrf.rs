//! URLs and addresses that lead into an internal network. Each is refused by the parser or by the guard.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use redrive_delivery::{
    Guard, GuardError, Phase, Target, Transport, TransportFailureKind as Kind, TransportSettings,
};

use crate::fixture::{FixedAnswers, post};

/// Hosts as somebody would write them in a URL.
const SPELLINGS: [&str; 145] = [
    // Loopback in the forms of inet_aton.
    "127.0.0.1",
    "127.0.0.0",
    "127.1",
    "127.0.1",
    "127.127.127.127",
    "127.255.255.255",
    "127.0.0.1.",
    "2130706433",
    "2130706433.",
    "017700000001",
    "0177.0.0.1",
    "0177.1",
    "0177.0.01",
    "00000177.0.0.1",
    "0x7f000001",
    "0x7F000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "0x7f.0.1",
    "0x7f.0x0.0x0.0x1",
    "0X7F.1",
    "0x0000007f.0.0.1",
    "0x7f.00.0x0.01",
    "127.0x1",
    "127.0.0x1",
    "127.00.00.01",
    "127.0.0.0x01",
    "127.16777215",
    "127.0.65535",
    // Percent signs and other characters that normalise to digits and dots.
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "%30x7f.1",
    "127。0。0。1",
    "127．0．0．1",
    "127｡0｡0｡1",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
    "𝟭𝟮𝟳.𝟬.𝟬.𝟭",
    "²¹³⁰⁷⁰⁶⁴³³",
    "１２７。１",
    "0x７f.1",
    "127.0.0.1%00",
    "127.0.0.1%20",
    "127.0.0.1%0d%0a",
    "127.0.0.1%2f@example.com",
    "127.0.0.1\u{ad}",
    "127.0.\u{200b}0.1",
    // Zero.
    "0",
    "0.0.0.0",
    "0.0",
    "00",
    "0x0",
    "0.0.0.1",
    "0.255.255.255",
    "000.000.000.000",
    // Private networks, carriers and links.
    "10.0.0.1",
    "10.255.255.255",
    "10.1",
    "0xa.1",
    "012.1",
    "167772161",
    "0x0a000001",
    "172.16.0.1",
    "172.31.255.255",
    "0xac.16.1",
    "2886729729",
    "192.168.0.1",
    "192.168.257",
    "0xc0a80001",
    "3232235521",
    "192.168.1.1.",
    "0300.0250.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.0.1",
    "169.254.1",
    // Metadata.
    "169.254.169.254",
    "169.254.43518",
    "2852039166",
    "0xa9fea9fe",
    "0xA9.0xFE.0xA9.0xFE",
    "0251.0376.0251.0376",
    "0251.254.169.254",
    "025177524776",
    "169.0xfea9fe",
    "169.254.169.254.",
    "169。254。169。254",
    "①⑥⑨.②⑤④.①⑥⑨.②⑤④",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "169.254.170.2",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    // Other special ranges.
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "4294967295",
    "0xffffffff",
    "037777777777",
    // IPv6.
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000::0001]",
    "[::0.0.0.1]",
    "[::]",
    "[::0]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::FFFF:10.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:8.8.8.8]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[::8.8.8.8]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::8.8.8.8]",
    "[64:ff9b:1::a00:1]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2002:808:808::]",
    "[2001::1]",
    "[2001:0:7f00:1::]",
    "[2001:10::1]",
    "[2001:20::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
    "[fc00::1]",
    "[fd12:3456::1]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[febf::1]",
    "[fec0::1]",
];

/// Hosts that need DNS or a trick.
const NAMES: [&str; 34] = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "LocalHost.",
    "a.localhost",
    "x.y.localhost.",
    "ｌｏｃａｌｈｏｓｔ",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "%6c%6f%63alhost",
    "localhost.localdomain",
    "ip6-localhost",
    "127.0.0.1.nip.io",
    "localtest.me",
    "metadata",
    "metadata.google.internal",
    "metadata.google.internal.",
    "instance-data",
    "kubernetes.default.svc",
    "six.test",
    "mapped.test",
    "nat64.test",
    "sixtofour.test",
    "both.test",
    "user@127.0.0.1",
    "user:pass@127.0.0.1",
    "example.com@127.0.0.1",
    "127.0.0.1@example.com",
    ":@127.0.0.1",
    "example.com\\@127.0.0.1",
    "127.0.0.1\\@example.com",
    "127.0.0.1#@example.com",
    "[::1",
    "[5f00::1]",
    "[ff02::1]",
];

fn internal_names() -> std::sync::Arc<FixedAnswers> {
    const LOOPBACK: &[&[&str]] = &[&["127.0.0.1", "::1"]];
    const METADATA: &[&[&str]] = &[&["169.254.169.254"]];
    FixedAnswers::of(&[
        ("localhost", LOOPBACK),
        ("localhost.", LOOPBACK),
        ("a.localhost", LOOPBACK),
        ("x.y.localhost.", LOOPBACK),
        ("localhost.localdomain", LOOPBACK),
        ("ip6-localhost", &[&["::1"]]),
        ("127.0.0.1.nip.io", LOOPBACK),
        ("localtest.me", LOOPBACK),
        ("metadata", METADATA),
        ("metadata.google.internal", METADATA),
        ("metadata.google.internal.", METADATA),
        ("instance-data", METADATA),
        ("kubernetes.default.svc", &[&["10.96.0.1"]]),
        ("six.test", &[&["fd00::1"]]),
        ("mapped.test", &[&["::ffff:10.0.0.1"]]),
        ("nat64.test", &[&["64:ff9b::10.0.0.1"]]),
        ("sixtofour.test", &[&["2002:a00:1::"]]),
        ("both.test", &[&["192.168.0.1", "fe80::1", "0.0.0.0"]]),
    ])
}

#[tokio::test]
async fn no_spelling_of_a_url_reaches_an_internal_address() {
    let settings = TransportSettings {
        resolver: internal_names(),
        connect_timeout: Duration::from_millis(100),
        ..Default::default()
    };
    let transport = Transport::new(settings).unwrap();
    let (mut unread, mut refused) = (0, 0);
    for host in SPELLINGS.iter().chain(&NAMES) {
        for url in [
            format!("http://{host}/"),
            format!("https://{host}:8443/"),
            format!("grpc://{host}/a.B/C"),
            format!("grpcs://{host}:50051/a.B/C"),
        ] {
            let Ok(target) = Target::parse(&url) else {
                unread += 1;
                continue;
            };
            let exchange = post(&transport, &target).await;
            let failure = exchange.failure.unwrap_or_else(|| panic!("{url} was answered"));
            assert_eq!(failure.kind, Kind::TargetRefused, "{url} as {target}: {}", failure.message);
            assert_eq!((exchange.phase, exchange.peer), (Phase::NeverSent, None), "{url}");
            refused += 1;
        }
    }
    // Most must get past the URL parser to the guard.
    assert!(refused > 500 && unread < 120, "{refused} refused, {unread} not read");
}

#[test]
fn every_special_range_is_refused_from_end_to_end() {
    let guard = Guard::public_only();
    for (range, what) in [
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocols"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("255.255.255.255/32", "broadcast"),
        ("100.100.100.200/32", "metadata"),
        ("192.0.0.192/32", "metadata"),
        ("168.63.129.16/32", "metadata"),
        ("169.254.169.254/32", "metadata"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("::1:0:0/96", "not assigned"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/64", "discarded"),
        ("2001::/32", "Teredo"),
        ("2001:2::/48", "protocols"),
        ("2001:10::/28", "ORCHID"),
        ("2001:20::/28", "ORCHID"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "private"),
        ("fd00:ec2::254/128", "metadata"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("4000::/3", "not assigned"),
        ("8000::/1", "not assigned"),
    ] {
        let net: IpNet = range.parse().unwrap();
        let (first, last) = match net {
            IpNet::V4(net) => (IpAddr::V4(net.network()), IpAddr::V4(net.broadcast())),
            IpNet::V6(net) => (IpAddr::V6(net.network()), IpAddr::V6(net.broadcast())),
        };
        let refusal = guard.check(first).expect_err(range);
        assert!(guard.check(last).is_err(), "{last} of {range}");
        // The broad ranges contain narrower ranges, which are listed separately.
        let broad = ["8000::/1", "4000::/3", "240.0.0.0/4"].contains(&range);
        assert!(broad || refusal.to_string().contains(what), "{range}: {refusal}");
        assert!(refusal.to_string().contains("--allow-target"), "{refusal}");
    }
}

#[test]
fn the_public_internet_may_be_dialled() {
    for address in [
        "1.0.0.0",
        "1.1.1.1",
        "8.8.8.8",
        "9.9.9.9",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "2000::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7:ffff::",
        "2001:db9::",
        "2001:ffff::",
        "2003::1",
        "2400:cb00::1",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "2c00::1",
        "3ffe::1",
        "3fff:1000::",
    ] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(Guard::public_only().check(address), Ok(()), "{address}");
        assert_eq!(Guard::open_to_loopback().check(address), Ok(()), "{address}");
    }
}

#[test]
fn denied_ranges_come_before_allowed_ones_and_both_before_the_table() {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let guard = Guard::public_only()
        .allow(net("10.0.0.0/8"))
        .allow(net("::ffff:0:0/96"))
        .allow(net("64:ff9b::/96"))
        .deny(net("10.1.0.0/16"))
        .deny(net("8.8.8.0/24"))
        .deny(net("2a00::/16"));
    for (address, allowed) in [
        ("10.0.0.1", true),
        ("10.2.0.1", true),
        ("10.1.0.1", false),
        ("8.8.8.8", false),
        ("8.8.4.4", true),
        ("192.168.0.1", false),
        ("2a00::1", false),
        ("2b00::1", true),
        ("::ffff:10.0.0.1", true),
        ("::ffff:10.1.0.1", false),
        ("64:ff9b::8.8.8.8", false),
        ("64:ff9b::8.8.4.4", true),
        ("2002:808:808::", false),
    ] {
        assert_eq!(guard.check(ip(address)).is_ok(), allowed, "{address}");
    }
    assert!(matches!(guard.check(ip("10.1.0.1")), Err(GuardError::Denied { .. })));
    // Allowing IPv4 addresses does not allow the IPv6 addresses that reach them through another machine.
    let guard = Guard::public_only().allow(net("0.0.0.0/0"));
    for address in ["64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "::1"] {
        assert!(guard.check(ip(address)).is_err(), "{address}");
    }
}

/// Notations of one address, ranges to allow, ranges to deny, and whether the address may be dialled then.
type RangeCase<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str], bool);

/// Ranges apply to the address that is dialled, in every notation.
#[test]
fn ranges_apply_to_the_dialled_address_in_every_notation() {
    let net = |text: &&str| text.parse::<IpNet>().unwrap();
    let private = ["10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203"];
    let loopback_v4 = ["127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "0.0.0.0", "::ffff:0.0.0.0"];
    let loopback_v6 = ["::1", "::"];
    let nat64 = ["64:ff9b::10.1.2.3"];
    let cases: &[RangeCase<'_>] = &[
        (&private, &[], &[], false),
        (&private, &["10.0.0.0/8"], &[], true),
        (&private, &["::ffff:10.0.0.0/104"], &[], true),
        (&private, &["::ffff:0:0/96"], &[], false),
        (&private, &["::/0"], &[], false),
        (&private, &["10.0.0.0/8"], &["10.1.2.3/32"], false),
        (&private, &["10.1.2.3/32"], &["10.0.0.0/8"], false),
        (&private, &["10.1.2.3/32"], &["10.1.2.3/32"], false),
        (&private, &["10.0.0.0/8"], &["::ffff:10.1.2.3/128"], false),
        (&private, &["10.0.0.0/8"], &["10.1.2.4/32"], true),
        (&loopback_v4, &[], &[], false),
        (&loopback_v4, &["127.0.0.0/8"], &[], true),
        (&loopback_v4, &["127.0.0.0/8"], &["127.0.0.1/32"], false),
        (&loopback_v4, &["0.0.0.0/0"], &["127.0.0.0/8"], false),
        // The notation alone allows nothing, because it would allow this machine.
        (&loopback_v4, &["0.0.0.0/8"], &[], false),
        (&loopback_v4, &["::ffff:0:0/96", "::/0"], &[], false),
        (&loopback_v6, &[], &[], false),
        (&loopback_v6, &["::1/128"], &[], true),
        (&loopback_v6, &["::/128"], &[], false),
        (&loopback_v6, &["::/0"], &["::1/128"], false),
        (&nat64, &["10.0.0.0/8"], &[], false),
        (&nat64, &["64:ff9b::/96"], &[], false),
        (&nat64, &["64:ff9b::/96", "10.0.0.0/8"], &[], true),
        (&nat64, &["64:ff9b::/96", "10.0.0.0/8"], &["10.1.0.0/16"], false),
    ];
    for (notations, allow, deny, allowed) in cases {
        let guard = allow.iter().map(net).fold(Guard::public_only(), Guard::allow);
        let guard = deny.iter().map(net).fold(guard, Guard::deny);
        for address in *notations {
            let checked = guard.check(address.parse().unwrap());
            assert_eq!(checked.is_ok(), *allowed, "{address}, allow {allow:?}, deny {deny:?}: {checked:?}");
        }
    }
    let open = Guard::open_to_loopback();
    let denied = open.clone().deny(net(&"127.0.0.0/8")).deny(net(&"::1/128"));
    for address in loopback_v4.iter().chain(&loopback_v6) {
        let address = address.parse().unwrap();
        assert!(open.check(address).is_ok() && denied.check(address).is_err(), "{address}");
    }
    assert!(open.check("10.0.0.1".parse().unwrap()).is_err());
}

#[tokio::test]
async fn a_denied_host_is_refused_in_every_spelling_of_its_url() {
    let allow: IpNet = "127.0.0.0/8".parse().unwrap();
    let guard = Guard::open_to_loopback().allow(allow).deny("127.0.0.1/32".parse::<IpNet>().unwrap());
    let transport = Transport::new(TransportSettings::default().with_guard(guard)).unwrap();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "127.1",
        "0177.0.0.1",
        "0x7f.1",
        "0.0.0.0",
        "0",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:0.0.0.0]",
    ] {
        let exchange = post(&transport, &Target::parse(&format!("http://{host}:9/")).unwrap()).await;
        assert_eq!(exchange.failure.map(|failure| failure.kind), Some(Kind::TargetRefused), "{host}");
    }
}
