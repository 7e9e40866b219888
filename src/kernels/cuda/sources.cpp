#include "kernels/cuda/sources.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace aicf::cuda {

namespace {

/// A piece of a source at the level of namespaces.
struct Piece {
    enum Kind { include, directive, opening, closing, declaration } kind;
    std::string_view text;                // of an include, the name of the file
    std::vector<std::string_view> names;  // that it declares; none: it is always taken
    std::vector<std::string_view> words;  // identifiers in it
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Walks over a text; comments are spaces to it.
class Scanner {
  public:
    explicit Scanner(std::string_view text, size_t at = 0) : text_(text), at_(at) {}

    bool done() const { return at_ >= text_.size(); }
    char now() const { return done() ? '\0' : text_[at_]; }
    size_t at() const { return at_; }
    std::string_view from(size_t begin) const { return text_.substr(begin, at_ - begin); }

    void skip_space() {
        for (;; at_++) {
            if (now() == '/' && text_.substr(at_).starts_with("//"))
                at_ = std::min(text_.find('\n', at_), end());
            if (done() || !std::isspace(static_cast<unsigned char>(now()))) return;
        }
    }
    /// What stands here: a word (a number is one too), a string, or a single character.
    std::string_view take() {
        const size_t begin = at_;
        if (in_word(now())) {
            while (in_word(now())) at_++;
        } else if (now() == '"') {
            do at_ += now() == '\\' ? 2u : 1u;
            while (!done() && now() != '"');
            at_ = std::min(at_ + 1, end());
        } else if (!done()) {
            at_++;
        }
        return from(begin);
    }
    /// Past the bracket that closes the one that stands here.
    void skip_brackets() {
        int depth = 0;
        do {
            const std::string_view token = take();
            if (token == "(" || token == "[" || token == "{") depth++;
            if (token == ")" || token == "]" || token == "}") depth--;
            if (depth > 0) skip_space();
        } while (depth > 0 && !done());
    }
    /// The same of a list of template parameters or arguments.
    void skip_angles() {
        int depth = 0;
        do {
            if (now() == '(' || now() == '{') {
                skip_brackets();
            } else {
                const std::string_view token = take();
                depth += token == "<" ? 1 : token == ">" ? -1 : 0;
            }
            skip_space();
        } while (depth > 0 && !done());
    }
    /// A line, with those that a backslash continues it by.
    std::string_view take_line() {
        const size_t begin = at_;
        while (!done() && !(now() == '\n' && text_[at_ - 1] != '\\')) at_++;
        return from(begin);
    }

  private:
    size_t end() const { return text_.size(); }
    std::string_view text_;
    size_t at_;
};

bool is_identifier(std::string_view token) {
    return !token.empty() && in_word(token[0]) &&
           !std::isdigit(static_cast<unsigned char>(token[0]));
}

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    Scanner at(text);
    for (at.skip_space(); !at.done(); at.skip_space())
        if (const std::string_view token = at.take(); is_identifier(token)) words.push_back(token);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
}

/// Names that a declaration gives something: of a type, a function, variables; none where it is
/// none of these.
std::vector<std::string_view> names_of(std::string_view text) {
    Scanner at(text);
    std::string_view first = at.take();
    while (first == "template") {
        at.skip_space();
        at.skip_angles();
        first = at.take();
    }
    if (first == "static_assert") return {};
    const bool type = first == "struct" || first == "class" || first == "union" || first == "enum";
    std::vector<std::string_view> names;
    std::string_view last = first;
    for (at.skip_space(); !at.done(); at.skip_space()) {
        const char c = at.now();
        const bool known = !names.empty();  // what follows is a value, or another variable
        if (c == '<' && !known) {
            at.skip_angles();
        } else if (c == '=' || c == '[' || c == ';') {
            if (is_identifier(last) && (!known || c == '=')) names.push_back(last);
            if (first == "using" || c == ';') break;
            last = at.take();
        } else if (c == '(' || c == '{') {
            if (!known && !type && is_identifier(last)) return {last};  // a function
            at.skip_brackets();
        } else {
            last = at.take();
            at.skip_space();
            if (last == "operator") return {};
            if (type && is_identifier(last) && last != "class" && at.now() != '(') return {last};
        }
    }
    return names;
}

/// Whether what stands here is the call of a macro, which needs no semicolon.
bool is_macro(std::string_view word) {
    return std::all_of(word.begin(), word.end(), [](char c) {
        return in_word(c) && !std::islower(static_cast<unsigned char>(c));
    });
}

/// What stands from here to the end of one declaration.
std::string_view take_declaration(Scanner& at) {
    const size_t begin = at.at();
    while (!at.done()) {
        if (at.now() == '{') {
            at.skip_brackets();
            const std::string_view text = at.from(begin);
            at.skip_space();  // a type, or a list of values, goes on to a semicolon
            if (at.now() != ';' && at.now() != ',') return text;
        } else if (at.now() == '(' || at.now() == '[') {
            at.skip_brackets();
        } else if (at.take() == ";") {
            break;
        }
        at.skip_space();
    }
    return at.from(begin);
}

std::vector<Piece> pieces_of(const std::string& source) {
    std::vector<Piece> pieces;
    Scanner at(source);
    for (at.skip_space(); !at.done(); at.skip_space()) {
        if (at.now() == '#') {
            const std::string_view line = at.take_line();
            Scanner words(line, 1);
            const std::string_view what = words.take();
            words.skip_space();
            if (what == "include") {
                const std::string_view name = words.take();
                if (name.starts_with('"'))
                    pieces.push_back({Piece::include, name.substr(1, name.size() - 2), {}, {}});
            } else if (what == "define") {
                pieces.push_back({Piece::directive, line, {words.take()}, words_of(line)});
            } else if (line != "#pragma once") {
                pieces.push_back({Piece::directive, line, {}, {}});
            }
            continue;
        }
        if (at.now() == '}') {
            pieces.push_back({Piece::closing, at.take(), {}, {}});
            continue;
        }
        Scanner ahead = at;
        const size_t begin = at.at();
        const std::string_view first = ahead.take();
        if (first == "namespace") {
            while (!ahead.done() && ahead.take() != "{") {
            }
            at = ahead;
            pieces.push_back({Piece::opening, at.from(begin), {}, {}});
        } else if (ahead.now() == '(' && is_macro(first)) {
            ahead.skip_brackets();
            at = ahead;
            const std::vector<std::string_view> words = words_of(at.from(begin));
            std::vector<std::string_view> names;
            for (const std::string_view word : words)
                if (word != first) names.push_back(word);
            pieces.push_back({Piece::declaration, at.from(begin), names, words});
        } else {
            const std::string_view text = take_declaration(at);
            pieces.push_back({Piece::declaration, text, names_of(text), words_of(text)});
        }
    }
    return pieces;
}

/// The pieces of a source and of what it includes that is not there yet.
void add_pieces(std::string_view name, std::set<std::string_view>& there,
                std::vector<const Piece*>& list) {
    static const auto* const all = [] {
        auto* const files = new std::map<std::string_view, std::vector<Piece>>;
        for (const SourceFile& file : source_files()) (*files)[file.name] = pieces_of(file.text);
        return files;
    }();
    if (!there.insert(name).second) return;
    const auto file = all->find(name);
    check(file != all->end(), "cuda: a program includes a source that is not embedded");
    for (const Piece& piece : file->second)
        if (piece.kind == Piece::include)
            add_pieces(piece.text, there, list);
        else
            list.push_back(&piece);
}

}  // namespace

const std::vector<SourceFile>& source_files() {
    static const std::vector<SourceFile> all = [] {
        std::vector<SourceFile> files = abi_sources();
        files.insert(files.end(), device_sources().begin(), device_sources().end());
        return files;
    }();
    return all;
}

std::string with_sources(const std::string& program) {
    std::set<std::string_view> there;
    std::vector<const Piece*> pieces;
    size_t body = 0;
    constexpr std::string_view include = "#include \"";
    while (std::string_view(program).substr(body).starts_with(include)) {
        const size_t name = body + include.size(), end = program.find('\n', body);
        add_pieces(std::string_view(program).substr(name, program.find('"', name) - name), there,
                   pieces);
        body = end == std::string::npos ? program.size() : end + 1;
    }
    std::map<std::string_view, std::vector<size_t>> known;  // by a name, which pieces declare it
    std::vector<char> taken(pieces.size(), 0);
    std::vector<size_t> fresh;  // whose words are yet to be looked up
    const auto take = [&](size_t i) {
        if (!std::exchange(taken[i], 1)) fresh.push_back(i);
    };
    for (size_t i = 0; i < pieces.size(); i++) {
        if (pieces[i]->names.empty()) take(i);
        for (const std::string_view name : pieces[i]->names) known[name].push_back(i);
    }
    const auto look_up = [&](const std::vector<std::string_view>& words) {
        for (const std::string_view word : words)
            if (const auto at = known.find(word); at != known.end()) {
                for (const size_t i : at->second) take(i);
                known.erase(at);
            }
    };
    look_up(words_of(std::string_view(program).substr(body)));
    while (!fresh.empty()) {
        const size_t i = fresh.back();
        fresh.pop_back();
        look_up(pieces[i]->words);
    }
    std::string text;
    for (size_t i = 0; i < pieces.size(); i++)
        if (taken[i]) text.append(pieces[i]->text).append("\n");
    return text + program.substr(body);
}

}  // namespace aicf::cuda
