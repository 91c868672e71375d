//! Documents in unusual spellings, and damaged ones, from a seed.

/// A source of documents; the same seed gives the same ones on every machine.
pub(crate) struct Documents {
    state: u64,
}

/// Characters at which readers and writers of JSON differ.
const CHARACTERS: [char; 24] = [
    'a',
    'b',
    'Z',
    '0',
    ' ',
    '/',
    '<',
    '&',
    '~',
    '"',
    '\\',
    '\n',
    '\u{0}',
    '\u{8}',
    '\u{1f}',
    '\u{7f}',
    '\u{80}',
    'é',
    '\u{301}',
    '\u{2028}',
    '\u{d7ff}',
    '\u{e000}',
    '\u{ffff}',
    '\u{10000}',
];

/// Numbers at the edges of what a double holds and of how Python lays it out.
const NUMBERS: [&str; 30] = [
    "0",
    "-0",
    "0.0",
    "-0.0",
    "0e0",
    "1.0",
    "1.10",
    "1E5",
    "1e16",
    "1e-5",
    "0.0001",
    "0.00001",
    "9007199254740993",
    "9007199254740993.0",
    "9999999999999998.0",
    "99999999999999999.0",
    "1e22",
    "1e23",
    "5e-324",
    "2.4703282292062327e-324",
    "2.4703282292062328e-324",
    "1e-400",
    "-1e-400",
    "2.2250738585072011e-308",
    "1.7976931348623157e308",
    "1.7976931348623158e308",
    "4.35",
    "2.675",
    "123456789012345678901234567890.0",
    "0.1e1",
];

impl Documents {
    pub(crate) fn from_seed(state: u64) -> Self {
        Self { state }
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// An object, four times in five; else something that may be damaged.
    pub(crate) fn document(&mut self) -> String {
        let mut document = self.object(4);
        match self.below(20) {
            0 => document = self.value(3),
            1 => document = self.deep(),
            2 => document = format!("{{\"a\":{}}}", self.long()),
            3..6 => document = self.damaged(&document),
            _ => {}
        }
        let (before, after) = (self.blank(), self.blank());
        format!("{before}{document}{after}")
    }

    /// `SplitMix64`: well mixed, and four lines.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn blank(&mut self) -> &'static str {
        self.pick(&["", "", "", " ", "\n", "\t\r\n  "])
    }

    fn value(&mut self, levels: usize) -> String {
        match self.below(if levels == 0 { 6 } else { 9 }) {
            0 => self.pick(&["null", "true", "false"]).to_owned(),
            1 | 2 => self.number(),
            3..6 => self.text(),
            6 => self.array(levels),
            _ => self.object(levels),
        }
    }

    fn array(&mut self, levels: usize) -> String {
        let values: Vec<_> = (0..self.below(5)).map(|_| self.value(levels - 1)).collect();
        format!("[{}{}{}]", self.blank(), values.join(self.pick(&[",", " ,", ", "])), self.blank())
    }

    fn object(&mut self, levels: usize) -> String {
        let members: Vec<_> = (0..self.below(7)).map(|_| self.member(levels)).collect();
        format!("{{{}{}{}}}", self.blank(), members.join(self.pick(&[",", "\n, "])), self.blank())
    }

    fn member(&mut self, levels: usize) -> String {
        let name = match self.below(400) {
            0 => "\"$serde_json::private::Number\"".to_owned(),
            1 => "\"$serde_json\\u003a:private::\"".to_owned(),
            2..60 => format!("\"k{}\"", self.below(40)),
            _ => self.text(),
        };
        let value = self.value(levels - 1);
        format!("{name}{}:{}{value}", self.blank(), self.blank())
    }

    fn text(&mut self) -> String {
        let mut text = String::from("\"");
        for _ in 0..self.below(9) {
            if self.below(300) == 0 {
                text += self.pick(&["\\ud83d", "\\ude00", "\\uDE00\\uD83D", "\\ud83d\\u0041"]);
                continue;
            }
            let any = char::from_u32((self.next() % 0x11_0000) as u32);
            let character = match (self.below(8), any) {
                (0, Some(any)) => any,
                _ => self.pick(&CHARACTERS),
            };
            self.spell(character, &mut text);
        }
        text + "\""
    }

    /// Writes a character for itself, by its short escape or by its long one.
    fn spell(&mut self, character: char, text: &mut String) {
        let must = character < ' ' || character == '"' || character == '\\';
        let short = "\"\\/\u{8}\u{c}\n\r\t".find(character).map(|at| &"\"\\/bfnrt"[at..=at]);
        match (short, self.below(3)) {
            (Some(short), 0) => text.extend(["\\", short]),
            (_, 1) if !must => text.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let upper = self.below(2) == 0;
                    let unit = if upper { format!("{unit:04X}") } else { format!("{unit:04x}") };
                    text.extend(["\\u", &unit]);
                }
            }
        }
    }

    fn number(&mut self) -> String {
        match self.below(60) {
            0 => self.pick(&["1e309", "-1.7976931348623159e308", "1e99999999999999999999"]).into(),
            1..15 => self.pick(&NUMBERS).to_owned(),
            15..30 => self.integer(),
            30..45 => self.double(),
            _ => self.decimal(),
        }
    }

    fn integer(&mut self) -> String {
        let digits = 1 + self.below(30);
        self.pick(&["", "-"]).to_owned() + &self.digits(digits)
    }

    /// Digits of which the first is no zero.
    fn digits(&mut self, count: usize) -> String {
        let rest = (1..count).map(|_| char::from(b'0' + self.below(10) as u8));
        let rest: String = rest.collect();
        format!("{}{rest}", 1 + self.below(9))
    }

    /// An integer around the limit of digits.
    fn long(&mut self) -> String {
        let count = 4290 + self.below(20);
        self.pick(&["", "-"]).to_owned() + &self.digits(count)
    }

    /// Any finite double, in its shortest digits or in more than enough of them.
    fn double(&mut self) -> String {
        let value = f64::from_bits(self.next());
        let value = if self.below(2) == 0 || !value.is_finite() { self.tie() } else { value };
        match self.below(3) {
            0 => format!("{value:e}")
                .replace('e', self.pick(&["e", "E", "e0"]))
                .replace("e0-", "e-0"),
            1 => format!("{value:.25e}"),
            _ => {
                let digits = self.below(18);
                format!("{value:.digits$e}")
            }
        }
    }

    /// A double with few binary places, which may lie in the middle between its two shortest
    /// spellings: Python takes the even one.
    fn tie(&mut self) -> f64 {
        let places = self.below(25) as i32;
        let whole = self.next() >> (11 + self.below(53));
        whole as f64 * 0.5_f64.powi(places)
    }

    /// Digits, a point and an exponent where a double is laid out one way or the other.
    fn decimal(&mut self) -> String {
        let (whole, fraction) = (1 + self.below(18), 1 + self.below(20));
        let whole = if self.below(3) == 0 { "0".to_owned() } else { self.digits(whole) };
        let zeros = self.pick(&["", "", "0", "0000"]);
        let exponent = match self.below(3) {
            0 => format!("{}{}", self.pick(&["e", "E", "e+", "e-", "E-0"]), self.below(24)),
            _ => String::new(),
        };
        let sign = self.pick(&["", "-"]);
        format!("{sign}{whole}.{zeros}{}{exponent}", self.digits(fraction))
    }

    /// Arrays and objects in one another, around the limit.
    fn deep(&mut self) -> String {
        let levels = 110 + self.below(20);
        let kinds: Vec<_> = (0..levels).map(|_| self.below(2) == 0).collect();
        let open = kinds.iter().map(|&array| if array { "[" } else { "{\"a\":" });
        let close = kinds.iter().rev().map(|&array| if array { "]" } else { "}" });
        let open: String = open.collect();
        format!("{{\"a\":{open}0{}}}", close.collect::<String>())
    }

    /// A document with a few characters taken away, put in or changed, or cut short.
    fn damaged(&mut self, document: &str) -> String {
        let mut characters: Vec<char> = document.chars().collect();
        for _ in 0..=self.below(2) {
            let at = self.below(characters.len());
            let wrong = self.pick(&[
                '{', '}', '[', ']', ',', ':', '"', '\\', '\'', '0', '-', '+', '.', 'e', 'u', 'N',
                't', '\u{0}', '\n', '\u{a0}', '\u{feff}', '/', '1',
            ]);
            match self.below(4) {
                0 => characters[at] = wrong,
                1 => characters.insert(at, wrong),
                2 if characters.len() > 1 => drop(characters.remove(at)),
                _ => characters.truncate(at.max(1)),
            }
        }
        characters.into_iter().collect()
    }
}
