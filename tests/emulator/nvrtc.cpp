// Under the name of NVRTC: compiles kernels for the host. What of CUDA C++ a host compiler does not
// know is rewritten: assembly becomes calls of device.h, shared memory what device.h finds there,
// and each kernel gets an entry that takes its argument block by address. EMULATOR_COMPILER,
// EMULATOR_FOLDER (of device.h) and EMULATOR_OPTIONS come from the environment.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Program {
    std::string text, log, image;
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Past the string or the brackets that begin at `at`; else one character on.
size_t past(const std::string& text, size_t at) {
    if (text[at] == '"') {
        for (at++; text[at] != '"'; at++) at += text[at] == '\\';
        return at + 1;
    }
    if (text[at] != '(' && text[at] != '[' && text[at] != '{') return at + 1;
    for (at++; text[at] != ')' && text[at] != ']' && text[at] != '}';) at = past(text, at);
    return at + 1;
}

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// Parts of a text between separators that stand in no bracket or string.
std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (size_t at = 0; at < text.size();) {
        const size_t next = past(text, at);
        if (text[at] == separator)
            parts.emplace_back();
        else
            parts.back() += text.substr(at, next - at);
        at = next;
    }
    return parts;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
        text.replace(at, what.size(), by);
    return text;
}

/// The operands of an instruction, their brackets and braces left out: %0 is the first of the
/// expressions, %%name what device.h calls so.
std::vector<std::string> operands_of(const std::string& text,
                                     const std::vector<std::string>& expressions) {
    std::string list;
    for (size_t at = 0; at < text.size(); at++) {
        if (text.compare(at, 2, "%%") == 0) {
            list += "ptx::";
            at++;
        } else if (text[at] == '%') {
            size_t digits = 0;
            list += expressions.at(std::stoul(text.substr(at + 1), &digits));
            at += digits;
        } else if (std::string_view("{}[]").find(text[at]) == std::string_view::npos) {
            list += text[at];
        }
    }
    std::vector<std::string> operands;
    for (const std::string& some : split(list, ','))
        for (const std::string& one : split(some, '|'))  // a result and whether it is there
            operands.push_back(trimmed(one) == "_" ? "ptx::nothing" : trimmed(one));
    return operands;
}

std::string joined(const std::vector<std::string>& all, size_t begin, size_t end,
                   const char* before) {
    std::string text;
    for (size_t i = begin; i < end; i++) text += (i > begin ? ", " : "") + (before + all[i]);
    return text;
}

/// The call that stands for an instruction.
std::string instruction_of(const std::string& text, const std::vector<std::string>& expressions) {
    const size_t end = std::min(text.find_first_of(" \n\t"), text.size());
    const std::string name = text.substr(0, end);
    const std::string list = trimmed(text.substr(end));
    const auto operands =
        list.empty() ? std::vector<std::string>() : operands_of(list, expressions);
    const std::string products = "wgmma.mma_async.sync.aligned.m64n";
    if (name.starts_with(products)) {
        const int columns = std::atoi(name.c_str() + products.size());
        const int kind = name.ends_with(".tf32") ? 2 : name.ends_with(".bf16") ? 1 : 0;
        const auto sums = static_cast<size_t>(columns / 2);
        // Rows in registers are read when the product is made, as sums are.
        const size_t held = std::count(list.begin(), list.end(), '{') > 1 ? 4 : 0;
        return "ptx::products<" + std::to_string(columns) + ", " + std::to_string(kind) + ">({" +
               joined(operands, 0, sums, "&") + "}, " +
               (held ? "{" + joined(operands, sums, sums + held, "&") + "}, " : "") +
               joined(operands, sums + held, operands.size(), "") + ");";
    }
    std::string call = "ptx::";
    for (const char c : name) call += in_word(c) ? c : '_';
    return call + "(" + joined(operands, 0, operands.size(), "") + ");";
}

/// The calls that stand for the parts of an assembly statement: text, results, operands. What waits
/// in a loop there waits in its instruction here.
std::string calls_of(const std::string& statement) {
    const std::vector<std::string> parts = split(statement, ':');
    std::string text;
    for (size_t at = 0; at < parts[0].size();) {
        const size_t next = past(parts[0], at);
        if (parts[0][at] == '"') text += parts[0].substr(at + 1, next - at - 2);
        at = next;
    }
    text = trimmed(replaced(text, "\\n", "\n"));
    if (text.starts_with("{\n") || text.starts_with("{ "))
        text = text.substr(1, text.rfind('}') - 1);
    std::vector<std::string> operands;
    for (size_t p = 1; p < parts.size() && p < 3; p++)
        for (const std::string& one : split(parts[p], ','))
            if (const size_t open = one.find('('); open != std::string::npos)
                operands.push_back(one.substr(open, one.rfind(')') - open + 1));
    std::string calls;
    for (std::string one : split(text, ';')) {
        one = trimmed(one);
        while (!one.empty()) {  // past labels
            const size_t line = std::min(one.find('\n'), one.size());
            if (one[line - 1] != ':') break;
            one = trimmed(one.substr(line));
        }
        if (one.empty() || one[0] == '@' || one.starts_with("bra ")) continue;
        if (one.starts_with(".reg ")) {
            const bool predicate = one.starts_with(".reg .pred");
            calls += (predicate ? "bool" : "ptx::u32") + one.substr(one.rfind(' ')) + "; ";
        } else {
            calls += instruction_of(one, operands) + " ";
        }
    }
    return "{ " + calls + "}";
}

/// A declaration in shared memory; `number` tells it from others.
std::string shared_of(std::string declaration, bool dynamic, size_t number) {
    if (dynamic) {
        if (const size_t at = declaration.find("__align__"); at != std::string::npos)
            declaration.erase(at, past(declaration, declaration.find('(', at)) - at);
        declaration = trimmed(declaration.substr(0, declaration.find('[')));
        const size_t name = declaration.find_last_of(" \n") + 1;
        const std::string type = declaration.substr(0, name);
        return type + "* const " + declaration.substr(name) + " = emulated::dynamic_shared<" +
               type + ">();";
    }
    const std::string head = trimmed(declaration.substr(0, declaration.find('[')));
    const std::string name = head.substr(head.find_last_of(" \n") + 1);
    const std::string type = "Shared" + std::to_string(number);
    return "struct " + type + " { " + declaration + "; }; auto& " + name +
           " = emulated::static_shared<" + type + ">()." + name + ";";
}

std::string rewritten(const std::string& text) {
    std::string result = "#include \"device.h\"\n#define __CUDACC_RTC__ 1\n", entries;
    size_t shared = 0;
    for (size_t at = 0; at < text.size();) {
        if (text.compare(at, 2, "//") == 0) {
            at = std::min(text.find('\n', at), text.size());
            continue;
        }
        if (!in_word(text[at])) {
            const size_t next = text[at] == '"' ? past(text, at) : at + 1;
            result += text.substr(at, next - at);
            at = next;
            continue;
        }
        size_t end = at;
        while (in_word(text[end])) end++;
        const std::string word = text.substr(at, end - at);
        if (word == "asm") {
            const size_t open = text.find('(', end), close = past(text, open);
            result += calls_of(text.substr(open + 1, close - open - 2));
            at = text.find(';', close) + 1;
        } else if (word == "__shared__") {
            const bool dynamic = result.ends_with("extern ");
            if (dynamic) result.erase(result.size() - 7);
            const size_t last = text.find(';', end);
            result += shared_of(trimmed(text.substr(end, last - end)), dynamic, shared++);
            at = last + 1;
        } else if (word == "__global__") {
            const size_t open = text.find("(const __grid_constant__ ", end);
            if (open != std::string::npos) {
                size_t name = open;
                while (in_word(text[name - 1])) name--;
                const size_t type = open + std::string("(const __grid_constant__ ").size();
                const std::string block = text.substr(type, text.find(' ', type) - type);
                const std::string kernel = text.substr(name, open - name);
                const std::string head = text.substr(end, name - end), says = "__cluster_dims__(";
                const size_t dims = head.find(says);
                const int cluster =
                    dims == std::string::npos ? 1 : std::atoi(head.c_str() + dims + says.size());
                entries +=
                    "extern \"C\" __attribute__((visibility(\"default\"))) unsigned emulated_" +
                    kernel + "_cluster() { return " + std::to_string(cluster) + "; }\n";
                entries += "extern \"C\" __attribute__((visibility(\"default\"))) void emulated_" +
                           kernel + "(const void* block) { " + kernel + "(*static_cast<const " +
                           block + "*>(block)); }\n";
            }
            result += word;
            at = end;
        } else {
            result += word;
            at = end;
        }
    }
    return result + "\nnamespace aicf {\n" + entries + "}\n";
}

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    if (!text) {
        std::fprintf(stderr, "emulator: %s is not set\n", name);
        std::abort();
    }
    return text;
}

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
    *program = new Program{source, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return 0;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    int arch = 0;
    const std::string wanted = "--gpu-architecture=sm_";
    for (int i = 0; i < count; i++)
        if (std::string(options[i]).starts_with(wanted))
            arch = std::atoi(options[i] + wanted.size());
    char folder[] = "/tmp/emulated.XXXXXX";
    if (!mkdtemp(folder)) return 1;
    const std::string base = folder;
    std::ofstream(base + "/kernels.cpp") << rewritten(program->text);
    const std::string command =
        "export LC_ALL=C; " + variable("EMULATOR_COMPILER") +
        " -std=c++20 -w -Wno-psabi -c -fPIC -fvisibility=hidden " +
        "-fno-gnu-unique -fno-threadsafe-statics -ffp-contract=off -fno-math-errno "
        "-fno-strict-aliasing " +
        variable("EMULATOR_OPTIONS") + " -D__CUDA_ARCH__=" + std::to_string(arch * 10) + " -I" +
        variable("EMULATOR_FOLDER") + " " + base + "/kernels.cpp -o " + base + "/kernels.o 2> " +
        base + "/log && " + variable("EMULATOR_COMPILER") + " -shared " + base + "/kernels.o -o " +
        base + "/kernels.so 2>> " + base + "/log";
    const int status = std::system(command.c_str());
    // As NVRTC says it.
    const std::regex where(R"(([^\s:]+):(\d+):\d+: )"), quote("'");
    program->log = std::regex_replace(contents(base + "/log"), where, "$1($2): ");
    program->log = std::regex_replace(program->log, quote, "\"");
    if (status == 0) program->image = contents(base + "/kernels.so");
    const bool keep = std::getenv("EMULATOR_KEEP") != nullptr;
    if (keep) std::fprintf(stderr, "emulator: %s\n", folder);
    for (const char* file : {"/kernels.cpp", "/kernels.o", "/kernels.so", "/log"})
        if (!keep) unlink((base + file).c_str());
    if (!keep) rmdir(folder);
    return status == 0 ? 0 : 6;  // NVRTC_ERROR_COMPILATION
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) {
    *size = program->log.size() + 1;
    return 0;
}
int nvrtcGetProgramLog(Program* program, char* log) {
    program->log.copy(log, program->log.size());
    log[program->log.size()] = '\0';
    return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) {
    *size = program->image.size();
    return 0;
}
int nvrtcGetCUBIN(Program* program, char* image) {
    program->image.copy(image, program->image.size());
    return 0;
}

}  // extern "C"
