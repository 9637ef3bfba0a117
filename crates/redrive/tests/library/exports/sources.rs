//! The public items of our crates, as their sources define them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::TokenTree;
use syn::visit::{self, Visit};
use syn::{Fields, ImplItem, Item, Type, UseTree, Visibility};

/// The crates whose types users of `redrive` may meet.
const CRATES: [&str; 7] = [
    "redrive",
    "redrive-core",
    "redrive-worker",
    "redrive-bodies",
    "redrive-store-sqlite",
    "redrive-store-postgres",
    "redrive-store-redis",
];

/// An item by its crate, spelled as in code, and its own name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) krate: String,
    pub(crate) item: String,
}

impl Name {
    fn new(krate: &str, item: impl ToString) -> Self {
        Self { krate: krate.to_owned(), item: item.to_string() }
    }
}

/// The parsed sources of our crates.
pub(crate) struct Sources {
    /// The public items.
    defined: BTreeSet<Name>,
    /// The items that the signatures of an item mention.
    members: BTreeMap<Name, BTreeSet<Name>>,
    /// The items of each module, by crate and file name.
    modules: BTreeMap<Name, Vec<Item>>,
}

impl Sources {
    pub(crate) fn read() -> Self {
        let mut sources =
            Self { defined: BTreeSet::new(), members: BTreeMap::new(), modules: BTreeMap::new() };
        for krate in CRATES {
            let spelled = krate.replace('-', "_");
            for path in rust_files(&root().join("crates").join(krate).join("src")) {
                let file = syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap();
                let module = path.file_stem().unwrap().to_string_lossy().into_owned();
                sources.read_items(&spelled, &file.items);
                sources.modules.entry(Name::new(&spelled, module)).or_default().extend(file.items);
            }
        }
        sources
    }

    /// The items of our crates that the public fields, variants and signatures of an item mention.
    pub(crate) fn used_by(&self, name: &Name) -> BTreeSet<Name> {
        let mentioned = self.members.get(name).into_iter().flatten();
        mentioned.filter_map(|used| self.definition(used)).collect()
    }

    /// The names of all types and constants of our crates.
    pub(crate) fn library_names(&self) -> BTreeSet<String> {
        self.defined.iter().map(|name| name.item.clone()).collect()
    }

    /// Whether `redrive` exports an item under this name, which may differ from the name of its definition.
    pub(crate) fn exported_as(&self, name: &str) -> bool {
        let mut renamed = Vec::new();
        for item in &self.modules[&Name::new("redrive", "lib")] {
            if let Item::Use(used) = item {
                used_names(&used.tree, &mut Vec::new(), &mut |_, local| renamed.push(local.to_owned()));
            }
        }
        renamed.iter().any(|local| local == name)
    }

    /// The items that can be imported from `redrive` or from one of its public modules.
    pub(crate) fn exports(&self) -> BTreeSet<Name> {
        let mut exports = BTreeSet::new();
        self.exports_of("redrive", &self.modules[&Name::new("redrive", "lib")], &mut exports);
        exports
    }

    fn exports_of(&self, krate: &str, items: &[Item], exports: &mut BTreeSet<Name>) {
        for item in items {
            match item {
                Item::Use(used) if is_public(&used.vis) => {
                    used_names(&used.tree, &mut Vec::new(), &mut |path, _| self.export(krate, path, exports));
                }
                Item::Mod(module) if is_public(&module.vis) => {
                    let items = match &module.content {
                        Some((_, items)) => items,
                        None => &self.modules[&Name::new(krate, &module.ident)],
                    };
                    self.exports_of(krate, items, exports);
                }
                item => exports.extend(public_name(item).map(|name| Name::new(krate, name))),
            }
        }
    }

    /// Adds what `pub use path` exports: an item, a whole module, or everything in one.
    fn export(&self, krate: &str, path: &[String], exports: &mut BTreeSet<Name>) {
        let first = path.first().map(String::as_str).unwrap_or_default();
        let krate = if CRATES.iter().any(|name| name.replace('-', "_") == first) { first } else { krate };
        let last = path.last().map(String::as_str).unwrap_or_default();
        let module = if last == "*" { path.iter().rev().nth(1) } else { path.last() };
        match module.and_then(|module| self.modules.get(&Name::new(krate, module))) {
            Some(items) => self.exports_of(krate, items, exports),
            None => exports.extend(self.definition(&Name::new(krate, last))),
        }
    }

    /// The item that a name means: an item of its own crate, or one that its crate re-exports from another of our crates.
    fn definition(&self, name: &Name) -> Option<Name> {
        let others = self.defined.iter().filter(|other| other.item == name.item && name.krate == "redrive");
        self.defined.get(name).or(others.into_iter().next()).cloned()
    }

    fn read_items(&mut self, krate: &str, items: &[Item]) {
        let imports = imports(krate, items);
        for item in items {
            match item {
                Item::Mod(module) if !is_test(&module.attrs) => {
                    let inner = module.content.as_ref().map(|(_, items)| &items[..]);
                    self.read_items(krate, inner.unwrap_or_default());
                }
                Item::Impl(block) => {
                    let Some(name) = self_name(&block.self_ty) else { continue };
                    let mut paths = Paths::new(krate, &imports);
                    block.items.iter().for_each(|item| paths.read_member(item, block.trait_.is_some()));
                    self.members.entry(Name::new(krate, name)).or_default().extend(paths.found);
                }
                item => {
                    let Some(name) = public_name(item) else { continue };
                    let mut paths = Paths::new(krate, &imports);
                    paths.read_item(item);
                    self.defined.insert(Name::new(krate, &name));
                    self.members.entry(Name::new(krate, name)).or_default().extend(paths.found);
                }
            }
        }
    }
}

/// Collects the paths in a signature.
struct Paths<'a> {
    krate: &'a str,
    imports: &'a BTreeMap<String, String>,
    found: BTreeSet<Name>,
}

impl<'a> Paths<'a> {
    fn new(krate: &'a str, imports: &'a BTreeMap<String, String>) -> Self {
        Self { krate, imports, found: BTreeSet::new() }
    }

    fn read_item(&mut self, item: &Item) {
        match item {
            Item::Struct(item) => self.read_fields(&item.fields),
            Item::Enum(item) => item.variants.iter().for_each(|variant| self.visit_variant(variant)),
            Item::Trait(item) => self.visit_item_trait(item),
            Item::Type(item) => self.visit_type(&item.ty),
            Item::Fn(item) => self.visit_signature(&item.sig),
            _ => {}
        }
    }

    fn read_fields(&mut self, fields: &Fields) {
        fields.iter().filter(|field| is_public(&field.vis)).for_each(|field| self.visit_field(field));
    }

    /// Reads a public method, or a type that a trait's impl names, such as the output of a future.
    fn read_member(&mut self, item: &ImplItem, of_trait: bool) {
        match item {
            ImplItem::Fn(method) if is_public(&method.vis) => self.visit_signature(&method.sig),
            ImplItem::Type(named) if of_trait => self.visit_type(&named.ty),
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let name = segments.iter().find(|segment| segment.starts_with(char::is_uppercase));
        let krate = match segments[0].as_str() {
            "crate" | "self" | "super" => Some(self.krate),
            first => self.imports.get(first).map(String::as_str),
        };
        let krate = krate.unwrap_or(if segments.len() == 1 { self.krate } else { &segments[0] });
        self.found.extend(name.map(|name| Name::new(krate, name)));
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

/// The crate that each imported name of a file comes from.
fn imports(krate: &str, items: &[Item]) -> BTreeMap<String, String> {
    let mut imports = BTreeMap::new();
    for item in items {
        let Item::Use(used) = item else { continue };
        used_names(&used.tree, &mut Vec::new(), &mut |path, local| {
            let from = match path[0].as_str() {
                "crate" | "self" | "super" => krate,
                // Our stores re-export their clients.
                _ if path.iter().any(|part| part == "rusqlite" || part == "tokio_postgres") => "elsewhere",
                first => first,
            };
            imports.insert(local.to_owned(), from.to_owned());
        });
    }
    imports
}

/// Calls `found` with the path and the local name of everything that a `use` brings into scope.
fn used_names(tree: &UseTree, path: &mut Vec<String>, found: &mut dyn FnMut(&[String], &str)) {
    let (name, local) = match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            used_names(&inner.tree, path, found);
            path.pop();
            return;
        }
        UseTree::Group(group) => {
            return group.items.iter().for_each(|tree| used_names(tree, path, found));
        }
        UseTree::Name(name) if name.ident == "self" => {
            return found(path, path.last().map(String::as_str).unwrap_or_default());
        }
        UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(renamed) => (renamed.ident.to_string(), renamed.rename.to_string()),
        UseTree::Glob(_) => ("*".to_owned(), "*".to_owned()),
    };
    path.push(name);
    found(path, &local);
    path.pop();
}

/// The name of a public item, or of a type that the macro `name!` of core defines.
fn public_name(item: &Item) -> Option<String> {
    let (vis, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Macro(item) if item.mac.path.is_ident("name") => {
            return item.mac.tokens.clone().into_iter().find_map(|token| match token {
                TokenTree::Ident(name) => Some(name.to_string()),
                _ => None,
            });
        }
        _ => return None,
    };
    is_public(vis).then(|| name.to_string())
}

fn self_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg"))
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Rust files of a folder and of its subfolders.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    files
}
